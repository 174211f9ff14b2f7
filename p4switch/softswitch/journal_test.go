package softswitch

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/proto"
)

// someUpdate is an update that can be told from others.
func someUpdate(n uint32) *p4v1.Update {
	return &p4v1.Update{Type: p4v1.Update_INSERT, Entity: &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{
		TableEntry: &p4v1.TableEntry{TableId: n, Metadata: bytes.Repeat([]byte{1}, 20)},
	}}}
}

// someJournal has a config and updates 1 to 5, the last two appended.
func someJournal(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journal")
	config := &p4v1.ForwardingPipelineConfig{P4DeviceConfig: []byte("program")}
	j, err := createJournal(path, journalHeader{journalFormat, 7}, config, []*p4v1.WriteRequest{{Updates: []*p4v1.Update{someUpdate(1), someUpdate(2), someUpdate(3)}}})
	if err != nil {
		t.Fatal(err)
	}
	for n := uint32(4); n <= 5; n++ {
		if _, err := j.add(&p4v1.WriteRequest{Updates: []*p4v1.Update{someUpdate(n)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.f.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func readUpdates(j *journalReader) (ids []uint32, err error) {
	for {
		r, err := j.next()
		if r == nil || err != nil {
			return ids, err
		}
		for _, u := range r.GetUpdates() {
			ids = append(ids, u.GetEntity().GetTableEntry().GetTableId())
		}
	}
}

// A journal cut off anywhere, as by a kill, has the updates that are whole, in
// order; cut off in what was written in one step with its name, it is none.
func TestJournal_CutOff(t *testing.T) {
	b := someJournal(t)
	one := proto.Size(&p4v1.WriteRequest{Updates: []*p4v1.Update{someUpdate(4)}}) + 1
	for n := range len(b) + 1 {
		j, err := readJournal(bytes.NewReader(b[:n]))
		if err != nil {
			if n >= len(b)-2*one {
				t.Errorf("%d of %d bytes: %v", n, len(b), err)
			}
			continue
		}
		ids, err := readUpdates(j)
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		want := 0
		for left := len(b) - n; want == 0; left -= one {
			switch {
			case left <= 0:
				want = 5
			case left <= one:
				want = 4
			case left <= 2*one:
				want = 3
			default:
				want = -1 // in the first message
			}
		}
		if want > 0 && len(ids) != want || want < 0 && len(ids) > 0 || j.Generation != 7 || string(j.config.GetP4DeviceConfig()) != "program" {
			t.Errorf("%d of %d bytes: generation %d, updates %v", n, len(b), j.Generation, ids)
		}
	}
}

func TestJournal_Damaged(t *testing.T) {
	b := string(someJournal(t))
	for name, c := range map[string]struct {
		journal string
		is      error
		says    string
	}{
		"nothing":        {"", nil, "no journal"},
		"not JSON":       {"program\n", nil, "no journal"},
		"newer format":   {strings.Replace(b, `"format":2`, `"format":3`, 1), ErrOtherVersion, "format 3"},
		"huge message":   {strings.SplitAfter(b, "\n")[0] + "\xff\xff\xff\xff\xff\x01", nil, "config"},
		"another length": {strings.SplitAfter(b, "\n")[0] + "\x01\xff", nil, "config"},
	} {
		_, err := readJournal(strings.NewReader(c.journal))
		if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// readAll reads the whole of a journal.
func readAll(j *journalReader) (all []*p4v1.WriteRequest, err error) {
	for {
		r, err := j.next()
		if r == nil || err != nil {
			return all, err
		}
		all = append(all, r)
	}
}

// FuzzJournal: what a journal says is the same when it is written anew.
func FuzzJournal(f *testing.F) {
	f.Add(someJournal(f))
	path := filepath.Join(f.TempDir(), "journal")
	f.Fuzz(func(t *testing.T, b []byte) {
		j, err := readJournal(bytes.NewReader(b))
		if err != nil {
			return
		}
		all, _ := readAll(j) // up to where it is damaged
		w, err := createJournal(path, j.journalHeader, j.config, all)
		if err != nil {
			t.Fatal(err)
		}
		defer w.f.Close()
		written, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer written.Close()
		again, err := readJournal(written)
		if err != nil || again.journalHeader != j.journalHeader || !proto.Equal(again.config, j.config) {
			t.Fatalf("%+v has become %+v, %v", j, again, err)
		}
		same, err := readAll(again)
		if err != nil || !slices.EqualFunc(same, all, func(a, b *p4v1.WriteRequest) bool { return proto.Equal(a, b) }) {
			t.Fatalf("%v\nhas become\n%v, %v", all, same, err)
		}
	})
}
