// Package newapp writes a first service of one's own: what `bifrost new` makes. The template has the code that follows from its IDL,
// too, so that it builds without the Thrift compiler.
package newapp

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
)

//go:embed template
var files embed.FS

const (
	root   = "template"
	suffix = ".tmpl"
)

// App is what is made.
type App struct {
	// Name is that of the app and its program.
	Name string
	// Module is the path of the Go module; "" stands for example.com/ and the name.
	Module string
	// Version is the release of Bifröst that it requires, Checkout the directory that stands for it, "" for none, and Go the version of
	// Go that it needs.
	Version, Checkout, Go string
}

var (
	nameForm   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,62}$`)
	moduleForm = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*\.[a-z]+(/[A-Za-z0-9][A-Za-z0-9._~-]*)*$`)
)

// Write makes the app in a directory, and says which files it has written. The directory must be new or empty.
func Write(dir string, a App) (written []string, err error) {
	if !nameForm.MatchString(a.Name) {
		return nil, fmt.Errorf("%q is no name for an app: take 1 to 63 letters, digits, - or _, a letter first", a.Name)
	}
	if a.Module == "" {
		a.Module = "example.com/" + a.Name
	}
	if !moduleForm.MatchString(a.Module) {
		return nil, fmt.Errorf("%q is no path for a module of Go: take one such as example.com/%s", a.Module, a.Name)
	}
	switch there, err := os.ReadDir(dir); {
	case err == nil && len(there) > 0:
		return nil, fmt.Errorf("directory %s has files already: name a new one", dir)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	err = fs.WalkDir(files, root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name := target(path)
		text, err := a.expand(path)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		written = append(written, name)
		return os.WriteFile(to, text, 0o644) //nolint:gosec // as any source
	})
	return written, err
}

// target is the name of the file that a template becomes.
func target(path string) string {
	name := strings.TrimSuffix(strings.TrimPrefix(path, root+"/"), suffix)
	if name == "gitignore" {
		return ".gitignore"
	}
	return name
}

// expand fills in a template. What is generated has nothing to be filled in.
func (a *App) expand(path string) ([]byte, error) {
	b, err := files.ReadFile(path)
	if err != nil || strings.Contains(path, "/gen-go/") {
		return b, err
	}
	t, err := template.New(path).Parse(string(b))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, a); err != nil {
		return nil, err
	}
	if strings.HasSuffix(target(path), ".go") { // the order of imports depends on the module's path
		return format.Source(out.Bytes())
	}
	return out.Bytes(), nil
}
