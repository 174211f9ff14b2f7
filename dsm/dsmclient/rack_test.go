package dsmclient_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/internal/memrack"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const prefix = rackaddr.DefaultDSMPrefix

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rack is a memrack.Rack, with what only these tests ask of it.
type rack struct{ *memrack.Rack }

func newRack(t testing.TB, cfg wire.Config, machines int) *rack {
	t.Helper()
	return newImpairedRack(t, cfg, machines, wire.Impairment{})
}

func newImpairedRack(t testing.TB, cfg wire.Config, machines int, imp wire.Impairment) *rack {
	t.Helper()
	return &rack{memrack.New(t, cfg, machines, imp)}
}
