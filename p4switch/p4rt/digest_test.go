package p4rt

import (
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

const digestConfig = `digest_entry { digest_id: 0x17000001 config { max_timeout_ns: 1000000 max_list_size: 2 ack_timeout_ns: 1000000000 } }`

func learn(mac, port byte) datapath.Digest {
	return datapath.Digest{Name: "learn_t", Fields: [][]byte{{0, 0, 0, 0, 0, mac}, {0, port}}}
}

func (c *controller) expectDigest(list uint64, data ...string) {
	c.t.Helper()
	got := c.next().GetDigest()
	want := &p4v1.DigestList{DigestId: 0x17000001, ListId: list, Timestamp: got.GetTimestamp()}
	for _, d := range data {
		m := &p4v1.P4Data{}
		if err := prototext.Unmarshal([]byte(d), m); err != nil {
			c.t.Fatal(err)
		}
		want.Data = append(want.Data, m)
	}
	if !proto.Equal(got, want) {
		c.t.Fatalf("got %v, want %v", got, want)
	}
}

func sample(mac, port string) string {
	return `struct { members { bitstring: "` + mac + `" } members { bitstring: "` + port + `" } }`
}

func TestSection9_8_Digest_ListsAndAcknowledgement(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		sink := b.fakes.last(t).sink
		sink.Digest(learn(1, 1)) // not enabled
		c.silent()
		c.must(c.insert(digestConfig))
		sink.Digest(learn(1, 1))
		sink.Digest(learn(1, 1)) // a duplicate
		c.silent()
		sink.Digest(learn(2, 1)) // the list is full
		c.expectDigest(1, sample(`\x01`, `\x01`), sample(`\x02`, `\x01`))
		sink.Digest(learn(1, 1)) // not acknowledged yet
		elapse(2 * time.Millisecond)
		c.silent()
		c.send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_DigestAck{
			DigestAck: &p4v1.DigestListAck{DigestId: 0x17000001, ListId: 1},
		}})
		c.silent()
		sink.Digest(learn(1, 1))
		c.silent() // waits for more, or for its timeout
		elapse(time.Millisecond)
		c.expectDigest(2, sample(`\x01`, `\x01`))
		elapse(1001 * time.Millisecond) // the acknowledgement times out
		sink.Digest(learn(1, 1))
		sink.Digest(learn(3, 1))
		c.expectDigest(3, sample(`\x01`, `\x01`), sample(`\x03`, `\x01`))
		if n := b.srv.Stats().DigestDrops; n != 1 {
			t.Errorf("%d drops counted", n)
		}
	})
}

// elapse lets virtual time go by.
func elapse(d time.Duration) { <-time.After(d) }
