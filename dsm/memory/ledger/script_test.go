package ledger

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/script"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// TestScripts plays testdata/*.txt: command lines, with their output indented below
// (go test -update writes it).
//
//	open LEDGER RUN nN/I                           nN/I is incarnation I of node N
//	append LEDGER RUN nN/I NUMBER[^KEEP] TEXT[…]   TEXT… continues in the next chunk
//	fill LEDGER RUN nN/I NUMBER BYTES              a chunk of as many bytes
//	read LEDGER FROM SIZE    stat LEDGER    used    names
//	grant LEDGER nN/I [pPORT/USER]    fence nN/I    end LEDGER RUN FIRST NEXT    delete LEDGER
//	reload                                         as after a restart, from the changes
//
// A LEDGER is nN, the ledger of that node, or any other word, that of a durable main.
func TestScripts(t *testing.T) {
	script.RunInline(t, "testdata/*.txt", func() script.Command {
		s := &scripted{store: New(testConfig), disk: newDisk()}
		return func(out io.Writer, words []string) error {
			s.out = out
			err := s.command(words)
			s.disk.apply(s.store.Changes())
			return err
		}
	})
}

var testConfig = Config{Birth: 0xb1, Space: 4096, Total: 3 * 4096, Durable: true}

type scripted struct {
	store *Store
	disk  *disk
	out   io.Writer
}

func (s *scripted) printf(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

func (s *scripted) command(w []string) error {
	at := func(i int) string {
		if i < len(w) {
			return w[i]
		}
		return ""
	}
	switch w[0] {
	case "open":
		s.answer(s.store.Open(name(at(1)), number(at(2)), writer(at(3))))
	case "append":
		n, keep, _ := strings.Cut(at(4), "^")
		text, continues := strings.CutSuffix(at(5), "…")
		s.answer(s.store.Append(name(at(1)), number(at(2)), writer(at(3)), uint64(number(keep)),
			dsmpacket.Chunk{Number: uint64(number(n)), Continues: continues, Data: []byte(text)}))
	case "fill":
		s.answer(s.store.Append(name(at(1)), number(at(2)), writer(at(3)), 0,
			dsmpacket.Chunk{Number: uint64(number(at(4))), Data: make([]byte, number(at(5)))}))
	case "read":
		chunks, a := s.store.Read(name(at(1)), uint64(number(at(2))), int(number(at(3))))
		for _, c := range chunks {
			s.printf("%d %q%s", c.Number, c.Data, map[bool]string{true: " continues"}[c.Continues])
		}
		s.answer(a)
	case "stat":
		st, ok := s.store.Stat(name(at(1)))
		s.printf("%v %+v", ok, st)
	case "used":
		s.printf("%d", s.store.Used())
	case "names":
		for _, n := range s.store.Names() {
			s.printf("%s", label(n))
		}
	case "grant":
		w := writer(at(2))
		owner := share.Owner{Port: uint32(w.Node.As16()[15])} // the node's own
		if _, err := fmt.Sscanf(at(3), "p%d/%d", &owner.Port, &owner.User); at(3) != "" && err != nil {
			return err
		}
		s.answer(s.store.Grant(name(at(1)), w, owner))
	case "fence":
		for _, n := range s.store.Fence(writer(at(1))) {
			st, _ := s.store.Stat(n)
			s.printf("%s run %d ends before %d", label(n), st.Run, st.Next)
		}
	case "end":
		s.answer(s.store.End(name(at(1)), number(at(2)), uint64(number(at(3))), uint64(number(at(4)))))
	case "delete":
		s.answer(s.store.Delete(name(at(1))))
	case "reload":
		return s.reload()
	default:
		return fmt.Errorf("unknown command %q", w[0])
	}
	return nil
}

func (s *scripted) answer(a Answer) {
	state := "open"
	switch {
	case a.Run == 0:
		state = "never opened"
	case a.Sealed:
		state = "sealed"
	}
	s.printf("%s: run %d %s, chunks %d to %d, room %d", a.Status, a.Run, state, a.First, a.Next, a.Room)
}

func (s *scripted) reload() error {
	used := s.store.Used()
	var err error
	if s.store, err = s.disk.load(); err != nil {
		return err
	}
	s.printf("%d bytes, before: %d", s.store.Used(), used)
	return nil
}

func number(s string) (n uint32) {
	_, _ = fmt.Sscanf(s, "%d", &n)
	return n
}

func name(s string) (n Name) {
	var node uint64
	if k, _ := fmt.Sscanf(s, "n%d", &node); k == 1 {
		return NameOf(rackaddr.Node(node))
	}
	copy(n[:], s)
	return n
}

func label(n Name) string {
	for i := range uint64(10) {
		if NameOf(rackaddr.Node(i)) == n {
			return fmt.Sprintf("n%d", i)
		}
	}
	return strings.TrimRight(string(n[:]), "\x00")
}

func writer(s string) Writer {
	var node uint64
	var incarnation uint32
	_, _ = fmt.Sscanf(s, "n%d/%d", &node, &incarnation)
	return Writer{Node: rackaddr.Node(node), Incarnation: incarnation}
}

// disk is what a durable shell keeps: the changes, applied in order.
type disk struct {
	metas  map[Name]Meta
	chunks map[Name]map[uint64]dsmpacket.Chunk
}

func newDisk() *disk { return &disk{map[Name]Meta{}, map[Name]map[uint64]dsmpacket.Chunk{}} }

func (d *disk) apply(changes []Change) {
	for _, c := range changes {
		if d.chunks[c.Name] == nil {
			d.chunks[c.Name] = map[uint64]dsmpacket.Chunk{}
		}
		switch {
		case c.Put != nil:
			d.chunks[c.Name][c.Put.Number] = *c.Put
		case c.Drop != nil:
			for n := c.Drop.First; n < c.Drop.Next; n++ {
				delete(d.chunks[c.Name], n)
			}
		case c.Meta != nil:
			d.metas[c.Name] = *c.Meta
		case c.Gone:
			delete(d.metas, c.Name)
			delete(d.chunks, c.Name)
		}
	}
}

// load makes a store of what the disk has.
func (d *disk) load() (*Store, error) {
	s := New(testConfig)
	for name, m := range d.metas {
		var chunks []dsmpacket.Chunk
		for n := m.First; len(chunks) < len(d.chunks[name]); n++ {
			c, ok := d.chunks[name][n]
			if !ok {
				return nil, fmt.Errorf("%s: chunk %d of %d is missing", label(name), n, len(d.chunks[name]))
			}
			chunks = append(chunks, c)
		}
		if err := s.Load(name, m, chunks); err != nil {
			return nil, err
		}
	}
	return s, nil
}
