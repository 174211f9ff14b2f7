package softswitch

import (
	"sync"

	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// Registers is the memory in which a machine that is simulated has the registers of its switch's program. It outlives the switches of the
// process, one after the other (Config.Registers). The zero value is that of a machine that has just been switched on. All methods may be called concurrently.
type Registers struct {
	mu   sync.Mutex
	last *interp.Registers // of the program that was committed last; nil before the first
}

// Lose empties the memory, as the loss of the machine does. No switch may run that has it.
func (r *Registers) Lose() { r.are(nil) }

// are notes the registers of a program that is committed. A switch without Registers has a nil one.
func (r *Registers) are(last *interp.Registers) {
	if r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.last = last
	}
}

func (r *Registers) get() *interp.Registers {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// registers are those that a Go executor of a program is to have: with goOn, the former one's, or those of a switch before; those that a process
// before has kept, while they are restored; else empty ones. Nil: those that it makes itself.
func (s *Switch) registers(prog *v1model.Program, former Executor, goOn bool) (*interp.Registers, error) {
	last := s.cfg.Registers.get()
	if former != nil {
		last = nil
		if g, ok := former.(*goExecutor); ok {
			last = g.Registers()
		}
	}
	switch {
	case goOn && last.Of(prog):
		return last, nil
	case s.keep == nil || interp.RegisterWords(prog) == 0:
		return nil, nil //nolint:nilnil // as documented
	case s.inherit != "":
		return s.keep.inheritRegisters(prog)
	}
	return s.keep.newRegisters(prog)
}
