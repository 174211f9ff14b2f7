package softswitch

import (
	"log/slog"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/p4rt/p4info"
)

// Executor is a Datapath that frames run through. Process may be called
// concurrently.
type Executor interface {
	datapath.Datapath
	// Process runs one frame that came in at a port to its end, on the caller's
	// goroutine. It calls emit for every frame that leaves by a port other than
	// the CPU port. Frame and emitted frames are lent for the call.
	Process(in datapath.Port, frame []byte, emit func(datapath.Port, []byte))
}

// Env is what an executor needs of its switch.
type Env struct {
	// Info is the program's P4Info, to be checked against the device config.
	Info *p4info.Info
	// CPUPort is the port whose frames go to the controller; 0 is none.
	CPUPort datapath.Port
	// Sink receives what the data plane has for the controller.
	Sink datapath.Sink
	// Emit is the emit function for frames that come from the controller.
	Emit func(datapath.Port, []byte)
	// Local tells that the switch has ports in the same process, whose frames a
	// kernel executor never sees.
	Local bool
	// Inherit is where an executor of the same program is pinned that is gone or to
	// be replaced; what packets have changed there is taken over. Empty: nothing.
	Inherit string
	// Links is where attachments to interfaces are pinned; empty: they are not.
	Links string
	// Log receives what the program logs, and a trace of every packet if
	// LevelTrace is enabled. Never nil.
	Log *slog.Logger
}

// tableCounter is an Executor that counts lookups by table.
type tableCounter interface {
	TableStats() map[string]datapath.TableCounts
}

// LevelTrace is the log level at which every packet's way is told.
const LevelTrace = slog.LevelDebug - 4

// Loader builds an executor from a device config, which is p4c's bmv2 JSON.
type Loader func(deviceConfig []byte, env Env) (Executor, error)
