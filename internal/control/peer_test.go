package control

import (
	"errors"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

func TestInputRefuses(t *testing.T) {
	cases := map[string]Message{
		"id 0":               {Kind: KindHello, Sender: 1},
		"below its floor":    {Kind: KindHello, ID: 4, Floor: 5, Sender: 1},
		"far from its floor": {Kind: KindHello, ID: 5 + Window, Floor: 5, Sender: 1},
	}
	for name, m := range cases {
		p := NewPeer(PeerConfig{Boot: 2})
		if err := p.Input(m.Append(nil)); !errors.Is(err, wirefmt.ErrFormat) {
			t.Errorf("%s: error %v", name, err)
		}
		if r := p.Ready(); len(r.Requests) != 0 {
			t.Errorf("%s: served", name)
		}
	}
}

// FuzzPeer: no packet upsets a peer, and what it keeps stays bounded.
func FuzzPeer(f *testing.F) {
	f.Add((&Message{Kind: KindHello, ID: 1, Floor: 1, Sender: 1}).Append(nil), (&Message{Kind: KindHello, ID: 300, Floor: 290, Sender: 1}).Append(nil))
	f.Add((&Message{Kind: KindHello, Reply: true, ID: 1, Sender: 2}).Append(nil), (&Message{Sender: 3, ID: 1}).Append(nil))
	f.Fuzz(func(t *testing.T, one, two []byte) {
		p := NewPeer(PeerConfig{Boot: 2, Follow: true})
		if _, err := p.Ask(time.Time{}, KindHello, nil); err != nil {
			t.Fatal(err)
		}
		for _, b := range [][]byte{one, two, one} {
			_ = p.Input(b) // may be garbage
			for _, m := range p.Ready().Requests {
				p.Answer(m, 0, nil)
			}
		}
		if p.kept() > maxKept+2*MaxMessage || len(p.served) > Window || len(p.retired) > retiredBoots {
			t.Fatalf("keeps %d replies, %d boots", len(p.served), len(p.retired))
		}
	})
}
