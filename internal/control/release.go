package control

import (
	"encoding/json"
	"runtime/debug"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Protocol is the version of all that the rack's parts say to each other beside packet headers,
// which have versions of their own: the bodies of control messages, what programs and their
// daemon tell each other, records of ledgers. Raise it with every change that an older part
// would not understand. Parts with different ones refuse each other when they meet.
const Protocol = 5

// Release says which protocol a part speaks, and which build it is, for people. Its zero value is
// written as that of this program.
type Release struct {
	Protocol int    `json:"protocol"`
	Build    string `json:"build,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (r Release) MarshalJSON() ([]byte, error) {
	if r == (Release{}) {
		r = ThisRelease()
	}
	type plain Release
	return json.Marshal(plain(r))
}

// module is this project's.
const module = "github.com/bifrost-rack/bifrost"

// ThisRelease is what this program speaks. An application's build is that of the library in it.
func ThisRelease() Release {
	r := Release{Protocol: Protocol, Build: "(unknown)"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return r
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module && m.Version != "" {
			r.Build = m.Version
		}
	}
	return r
}

// Check refuses a part with another protocol, as BadRequest. Who is that part, and here is this
// one.
func (r Release) Check(op, who, here string) error {
	if r.Protocol == Protocol {
		return nil
	}
	build := r.Build
	if build == "" {
		build = "an older one"
	}
	return fault.New(fault.BadRequest, op, "%s speaks protocol %d (build %.64s), %s protocol %d (build %s): install the same release everywhere",
		who, r.Protocol, build, here, Protocol, ThisRelease().Build)
}
