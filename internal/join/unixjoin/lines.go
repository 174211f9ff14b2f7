package unixjoin

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
)

// The operations.
const (
	opJoin    = "join"
	opExport  = "export"
	opLeave   = "leave"
	opCrash   = "crash"
	opStatus  = "status"
	opMain    = "main"
	opWho     = "who"
	opService = "service"
	opAlive   = "alive"
	opServing = "serving"
	opCalls   = "calls"
	opLedger  = "ledger"
	opBlocks  = "blocks"
	opBatches = "batches"
	opListen  = "listen"
	opHeld    = "holdings"
	opSharing = "sharing"
	opAccount = "account"
	opShare   = "share"
)

// asks are the operations that only ask or tell the Gatekeeper. They wait for as long as there is
// none, and hold nothing else up.
var asks = map[string]bool{opMain: true, opWho: true, opService: true, opServing: true, opSharing: true, opCalls: true, opLedger: true, opBlocks: true, opBatches: true, opHeld: true, opAccount: true, opShare: true}

// request is a line from a program.
type request struct {
	ID       uint64          `json:"id"` // not 0
	Op       string          `json:"op"`
	Name     string          `json:"name,omitempty"`
	Instance string          `json:"instance,omitempty"`
	NoLedger bool            `json:"no_ledger,omitempty"` // opJoin's: control.Join's
	Address  netip.Addr      `json:"address,omitzero"`
	Port     uint16          `json:"port,omitempty"` // opListen's, with Address
	Export   *control.Export `json:"export,omitempty"`
	// Main is opMain's question.
	Main    *control.BeginMain `json:"main,omitempty"`
	Stalled bool               `json:"stalled,omitempty"`
	Reason  string             `json:"reason,omitempty"` // opCrash's
	// Speaks is opJoin's: the program's.
	Speaks *control.Release `json:"speaks,omitempty"`
	// Serving is opServing's question.
	Serving *control.Serving `json:"serving,omitempty"`
	// Sharing is opSharing's question.
	Sharing *control.Sharing `json:"sharing,omitempty"`
	// Calls is what opCalls tells.
	Calls *control.NodeCalls `json:"calls,omitempty"`
	// Want is opBlocks' question: how many blocks of call slots the node wants in all; and opBatches': how many batches of region slots on
	// Machine.
	Want    int   `json:"want,omitempty"`
	Machine uint8 `json:"machine,omitempty"`
	// Held is opHeld's question.
	Held *control.HoldingsQuery `json:"held,omitempty"`
	// Account is what opAccount tells.
	Account *control.AccountPage `json:"account,omitempty"`
	// Share is opShare's wish.
	Share *control.Share `json:"share,omitempty"`
}

// reply is a line from the daemon: the answer to the request with its id, or, if
// that is 0, news.
type reply struct {
	ID      uint64               `json:"id,omitempty"`
	Code    fault.Code           `json:"code,omitempty"` // an error
	Message string               `json:"message,omitempty"`
	Remote  bool                 `json:"remote,omitempty"` // the error is the Gatekeeper's
	Joined  *joined              `json:"joined,omitempty"`
	Status  *join.Status         `json:"status,omitempty"`
	Main    *control.BegunMain   `json:"main,omitempty"`
	Who     *control.NodeInfo    `json:"who,omitempty"`
	Service *control.ServiceInfo `json:"service,omitempty"`
	Rack    *control.Rack        `json:"rack,omitempty"`
	Ended   bool                 `json:"ended,omitempty"`  // the node has lost its identity
	Cancel  string               `json:"cancel,omitempty"` // the program is to cancel this call
	// Deadlock says why that call would wait for itself: it is to be refused, if it still waits for its turn.
	Deadlock string `json:"deadlock,omitempty"`
	Ping     bool   `json:"ping,omitempty"` // the program is to say that it is alive
	// Account: the program is to give its node's account, for the question of this number.
	Account uint64 `json:"account,omitempty"`
	// Serving answers opServing, and Exported opExport.
	Serving  *control.ServingList `json:"serving,omitempty"`
	Exported *control.Exported    `json:"exported,omitempty"`
	// Sharing answers opSharing.
	Sharing *control.SharingReply `json:"sharing,omitempty"`
	// Share answers opShare.
	Share *control.ShareReply `json:"share,omitempty"`
	// Blocks answers opBlocks: those that the node has.
	Blocks []uint32 `json:"blocks,omitempty"`
	// Batches answers opBatches: those that the node has there.
	Batches []uint32 `json:"batches,omitempty"`
	// Ledger answers opLedger; none yet if it is nil.
	Ledger *control.LedgerPlace `json:"ledger,omitempty"`
	// Held answers opHeld.
	Held *control.HoldingsPage `json:"held,omitempty"`
	// Socket says that a socket comes with the line (SCM_RIGHTS): it answers opListen.
	Socket bool `json:"socket,omitempty"`
	// Relayed says that it is a stream of frames (package relay) and not a UDP socket.
	Relayed bool `json:"relayed,omitempty"`
	file    *os.File
}

// joined is who the program is now.
type joined struct {
	Identity join.Identity `json:"identity"`
	MTU      int           `json:"mtu"`
	Rack     control.Rack  `json:"rack"`
	// Speaks is the daemon's.
	Speaks control.Release `json:"speaks"`
}

// errLine is what every error about the form of a line wraps.
var errLine = errors.New("malformed line")

// lineReader reads lines. It takes memory as a line comes.
type lineReader struct {
	in *bufio.Reader
	// take, unless it is nil, is asked for each part of a line before it is kept; give has back what a line that cannot be
	// read has taken. What was taken of a line that was read is for its reader to give back.
	take func(bytes int) error
	give func(bytes int)
}

// newReader returns a reader that may take all memory that lines need.
func newReader(r io.Reader) *lineReader {
	return &lineReader{in: bufio.NewReaderSize(r, firstBuffer), take: func(int) error { return nil }, give: func(int) {}}
}

// read reads one line into v, and returns how many bytes it has taken. io.EOF is the end of a connection; other errors but
// those of the connection itself wrap errLine, or are take's.
func (r *lineReader) read(v any) (size int, err error) {
	defer func() {
		if err != nil {
			r.give(size)
			size = 0
		}
	}()
	var long []byte
	for {
		b, err := r.in.ReadSlice('\n')
		full := errors.Is(err, bufio.ErrBufferFull)
		switch {
		case full && len(long)+len(b) >= maxLine:
			return size, fmt.Errorf("%w: longer than %d bytes", errLine, maxLine)
		case errors.Is(err, io.EOF) && len(long)+len(b) > 0:
			return size, fmt.Errorf("%w: cut off", errLine)
		case err != nil && !full:
			return size, err
		}
		if err := r.take(len(b)); err != nil {
			return size, err
		}
		size += len(b)
		if full || long != nil {
			long = append(long, b...)
			b = long
		}
		if full {
			continue
		}
		if err := json.Unmarshal(b, v); err != nil {
			return size, fmt.Errorf("%w: %w", errLine, err)
		}
		return size, nil
	}
}

// writeLine writes v as one line.
func writeLine(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// failure is an error in a reply's form.
func failure(id uint64, err error) reply {
	r := reply{ID: id, Code: fault.CodeOf(err), Message: err.Error()}
	var f *fault.Error
	if errors.As(err, &f) {
		r.Remote = f.Remote
		if f.Msg != "" && f.Err == nil {
			r.Message = f.Msg
		}
	}
	return r
}

// err is the error that a reply reports, nil for none.
func (r *reply) err(op string) error {
	if r.Code == fault.OK {
		return nil
	}
	return &fault.Error{Code: r.Code, Op: op, Msg: r.Message, Remote: r.Remote}
}
