package hostwire

import (
	"bytes"
	"encoding/json"
	"slices"
	"unicode"
	"unicode/utf8"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// HelloBody is the body of a [Hello], as JSON: what the child serves.
type HelloBody struct {
	// Version is [Version].
	Version int `json:"version"`
	// Speaks names the child's library and its version, for logs; it may be "".
	Speaks string `json:"speaks,omitempty"`
	// Name says what people call the node, unless the host is told; it may be "".
	Name     string        `json:"name,omitempty"`
	Services []ServiceBody `json:"services"`
}

// ServiceBody is a service of the child.
type ServiceBody struct {
	Name string `json:"name"`
	// Methods are those that it has; each takes and gives Thrift messages under its name.
	Methods []string `json:"methods"`
	// IDL is the text of the Thrift file that defines it, for callers without generated code; "" if it is not published.
	IDL string `json:"idl,omitempty"`
	// State says that the service has state, and so runs one call at a time.
	State bool `json:"state,omitempty"`
	// Workers says how many calls run at a time, those that wait for calls of their own not counted, and Queue how many wait. 0 stands for
	// the host's default.
	Workers int `json:"workers,omitempty"`
	Queue   int `json:"queue,omitempty"`
	// Policies are those of methods, by name; the name "" stands for all others. They go before what the IDL says.
	Policies map[string]string `json:"policies,omitempty"`
	// MaxFailures says after how many failures of the program an exactly-once call of a method is given up; "" stands for all others.
	MaxFailures map[string]int `json:"max_failures,omitempty"`
}

// WelcomeBody is the body of a [Welcome], as JSON.
type WelcomeBody struct {
	Version int    `json:"version"`
	Node    string `json:"node"`    // name of the node
	Address string `json:"address"` // its IPv6 address
	// Calls is how many calls the child has at most at a time.
	Calls int `json:"calls"`
	// MaxMessage is how many bytes a Thrift message, a value of the state and the result of an effect have at most.
	MaxMessage int `json:"max_message"`
}

const (
	maxServices = 64
	maxMethods  = 1024
	maxIDL      = 128 << 10
	maxWorkers  = 4096
	maxQueue    = 1 << 20
)

// ParseHello parses the body of a [Hello], and refuses what no host can serve.
func ParseHello(b []byte) (h HelloBody, err error) {
	var version struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(b, &version); err != nil {
		return h, malformed("the hello is no JSON: %v", err)
	}
	switch {
	case version.Version == nil:
		return h, malformed("the hello has no version")
	case *version.Version != Version:
		return h, malformed("the child speaks version %d of the protocol, this host version %d: install the package of this bifrost's version", *version.Version, Version)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&h); err != nil {
		return h, malformed("hello: %v", err)
	}
	if n := len(h.Services); n < 1 || n > maxServices {
		return h, malformed("%d services: want 1 to %d", n, maxServices)
	}
	var names []string
	for i := range h.Services {
		if err := h.Services[i].check(); err != nil {
			return h, err
		}
		names = append(names, h.Services[i].Name)
	}
	slices.Sort(names)
	if len(slices.Compact(names)) < len(h.Services) {
		return h, malformed("two services have the same name")
	}
	if !printable(h.Name) || !printable(h.Speaks) {
		return h, malformed("a name with more than %d bytes, or with signs that cannot be printed", maxName)
	}
	return h, nil
}

// check refuses a service that no host can serve.
func (s *ServiceBody) check() error {
	switch {
	case s.Name == "" || !printable(s.Name):
		return malformed("a service is called %.100q: want 1 to %d bytes that can be printed", s.Name, maxName)
	case len(s.Methods) < 1 || len(s.Methods) > maxMethods:
		return malformed("service %s has %d methods: want 1 to %d", s.Name, len(s.Methods), maxMethods)
	case len(s.IDL) > maxIDL || !utf8.ValidString(s.IDL):
		return malformed("service %s: an IDL of %d bytes: want %d at most, of UTF-8", s.Name, len(s.IDL), maxIDL)
	case s.Workers < 0 || s.Workers > maxWorkers || s.Queue < 0 || s.Queue > maxQueue:
		return malformed("service %s: %d workers and a queue of %d: want up to %d and %d", s.Name, s.Workers, s.Queue, maxWorkers, maxQueue)
	}
	for i, m := range s.Methods {
		if !methodName(m) || slices.Contains(s.Methods[:i], m) {
			return malformed("service %s has the method %.100q: want a name of IDL, once", s.Name, m)
		}
	}
	for m, p := range s.Policies {
		if _, ok := rpcpacket.ParsePolicy(p); !ok || m != "" && !slices.Contains(s.Methods, m) {
			return malformed("service %s: policy %.100q of method %.100q: want none, recover, fate-share or tainted, and a method that it has", s.Name, p, m)
		}
	}
	for m, n := range s.MaxFailures {
		if n < 0 || m != "" && !slices.Contains(s.Methods, m) {
			return malformed("service %s: %d failures of method %.100q: want 0 at least, and a method that it has", s.Name, n, m)
		}
	}
	return nil
}

// methodName reports whether an IDL can declare a method of this name.
func methodName(s string) bool {
	for i, r := range s {
		if r >= utf8.RuneSelf || !unicode.IsLetter(r) && r != '_' && (i == 0 || !unicode.IsDigit(r)) {
			return false
		}
	}
	return s != "" && len(s) <= 255
}

// printable reports whether a name can be shown.
func printable(s string) bool {
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return utf8.ValidString(s) && len(s) <= maxName
}
