package softswitch

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/encoding/protodelim"
)

// ErrOtherVersion means that what another version of the switch has kept cannot be
// taken over.
var ErrOtherVersion = errors.New("kept by another version of the switch")

// journalFormat is the version of the journal's layout, and of what its
// generation pins. It changes whenever the values in pinned maps change their
// meaning.
const journalFormat = 2

// maxJournalMessage bounds one message of a journal, as it does one of P4Runtime.
const maxJournalMessage = 256 << 20

// journalHeader is the first line of a journal, in JSON. Behind it lie protocol
// buffer messages, each with its length as a varint in front: the
// p4.v1.ForwardingPipelineConfig, then a p4.v1.WriteRequest for each batch of
// updates, or for the highest election id of a role.
type journalHeader struct {
	Format     int    `json:"format"`
	Generation uint64 `json:"generation"` // which pins belong to it
}

// journal is a file of updates that grows until a new one replaces it. A killed
// process may leave half a message at its end, which has not been answered.
type journal struct {
	f       *os.File
	size    int64 // of the file
	initial int64 // its size when it began
}

// minLong is how long a journal may be whatever it began with, in bytes.
const minLong = 4 << 20

// createJournal writes a journal and puts it in its place in one step.
func createJournal(path string, h journalHeader, config *p4v1.ForwardingPipelineConfig, state []*p4v1.WriteRequest) (*journal, error) {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(h); err != nil { // ends the line
		return nil, err
	}
	if _, err := protodelim.MarshalTo(&b, config); err != nil {
		return nil, err
	}
	for _, r := range state {
		if _, err := protodelim.MarshalTo(&b, r); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err = f.Write(b.Bytes()); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &journal{f: f, size: int64(b.Len()), initial: int64(b.Len())}, nil
}

// add appends a request. With long, most of the journal is likely outdated.
func (j *journal) add(r *p4v1.WriteRequest) (long bool, err error) {
	var b bytes.Buffer
	if _, err := protodelim.MarshalTo(&b, r); err != nil {
		return false, err
	}
	n, err := j.f.Write(b.Bytes())
	j.size += int64(n)
	return j.size > 2*j.initial+minLong, err
}

// journalReader reads a journal that another process has left.
type journalReader struct {
	journalHeader
	config *p4v1.ForwardingPipelineConfig

	r *bufio.Reader
}

// readJournal reads a journal's beginning. Errors say what is wrong with it.
func readJournal(r io.Reader) (*journalReader, error) {
	j := &journalReader{r: bufio.NewReader(r), config: &p4v1.ForwardingPipelineConfig{}}
	line, err := j.r.ReadSlice('\n')
	if err == nil {
		err = json.Unmarshal(line, &j.journalHeader)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("no journal of a switch: %w", err)
	case j.Format != journalFormat:
		return nil, fmt.Errorf("%w: the journal has format %d, this version needs %d", ErrOtherVersion, j.Format, journalFormat)
	}
	if err := (protodelim.UnmarshalOptions{MaxSize: maxJournalMessage}).UnmarshalFrom(j.r, j.config); err != nil {
		return nil, fmt.Errorf("the journal's pipeline config: %w", err)
	}
	return j, nil
}

// next is the next request, nil at the end. A message that was being written when
// the process died ends the journal.
func (j *journalReader) next() (*p4v1.WriteRequest, error) {
	m := &p4v1.WriteRequest{}
	err := protodelim.UnmarshalOptions{MaxSize: maxJournalMessage}.UnmarshalFrom(j.r, m)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, nil //nolint:nilnil // the end, as documented
	}
	return m, err
}
