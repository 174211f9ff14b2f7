package simrack

import (
	"bytes"
	"sync"

	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/softswitch"
	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// compiled is Bifröst's own program. To load it is most of what a rack takes to
// start, and racks can share it.
var compiled = sync.OnceValues(func() (*v1model.Program, error) { return v1model.Load(p4.JSON) })

// load is the switch's softswitch.Loader.
func load(deviceConfig []byte, env softswitch.Env) (softswitch.Executor, error) {
	if !bytes.Equal(deviceConfig, p4.JSON) {
		return softswitch.LoadGo(deviceConfig, env)
	}
	prog, err := compiled()
	if err != nil {
		return nil, err
	}
	return softswitch.RunGo(prog, env)
}
