package gen

import (
	"path"
	"strings"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Generation is the version of what is generated. The runtime has a constant
// SupportsGen of the same number, which the code refers to.
const Generation = 5

// Options say where things are.
type Options struct {
	// PackagePrefix stands in front of the import paths of included files' Go
	// code; as the Thrift compiler's option package_prefix.
	PackagePrefix string
	// Beside reads what the Thrift compiler has generated, by names as of [File]: the stubs
	// follow its version where versions name things differently. Without it they follow 0.25.
	Beside ReadFunc
	// Include are directories to look for included files in, besides that of the
	// including one.
	Include []string
}

// File is one that has been generated.
type File struct {
	Name    string // relative to the output directory, with slashes
	Content []byte // gofmt-clean Go
}

// Generate makes the stubs for one IDL file. It returns every mistake that it
// finds, each an *Error, joined. The same input gives the same output.
func Generate(file string, read ReadFunc, o Options) ([]File, error) {
	return generate(file, read, o, wireNames)
}

// wireNames are the names of methods as packets carry them.
var wireNames wireFunc = rpcpacket.MethodOf

func generate(file string, read ReadFunc, o Options, wire wireFunc) ([]File, error) {
	l := loader{read: read, dirs: o.Include, units: map[string]*unit{}}
	u, err := l.load(path.Clean(file))
	if err != nil {
		return nil, err
	}
	return generateUnit(u, o, wire)
}

// generateUnit makes the stubs of one of the files that were loaded.
func generateUnit(u *unit, o Options, wire wireFunc) ([]File, error) {
	dir := strings.ReplaceAll(u.namespace(), ".", "/")
	var names naming
	if o.Beside != nil {
		beside, _ := o.Beside(path.Join(dir, u.name+".go")) // it may not be there yet
		names = namingOf(beside)
	}
	c := checker{scope: newScope(u, names, "")}
	view := c.plan(u, o.PackagePrefix, wire)
	if err := c.problems.err(); err != nil {
		return nil, err
	}
	if view == nil {
		return nil, &Error{File: u.path, Msg: "no service has an annotation of Bifröst's, so there is nothing to generate",
			Remedy: "mark what is to travel by reference with (bifrost.ref)"}
	}
	content, err := render(view)
	if err != nil {
		return nil, err
	}
	return []File{{Name: path.Join(dir, u.name+"-bifrost.go"), Content: content}}, nil
}
