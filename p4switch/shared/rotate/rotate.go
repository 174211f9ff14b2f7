// Package rotate writes files of bounded size: one that is full becomes the older one,
// and what was older goes.
package rotate

import (
	"errors"
	"io/fs"
	"os"
)

// Older is what the name of the older file ends with.
const Older = ".1"

// File is a file to append to, with an older one beside it (Path + Older). Together they
// have at most twice Max bytes. Methods must not be called concurrently.
type File struct {
	// Path is where it is written.
	Path string
	// Max is how many bytes a file has before the next one begins; one Write is never
	// divided, and may have more. 0 is no bound.
	Max int64
	// Opened, if set, is called with each file that is begun or gone on with.
	Opened func(*os.File) error

	f    *os.File
	size int64
}

// Write implements io.Writer. What cannot be written as a whole is not kept; a later Write
// tries again.
func (r *File) Write(b []byte) (int, error) {
	if r.f != nil && r.Max > 0 && r.size > 0 && r.size+int64(len(b)) > r.Max {
		if err := r.turn(); err != nil {
			return 0, err
		}
	}
	if err := r.Open(); err != nil {
		return 0, err
	}
	n, err := r.f.Write(b)
	if err != nil && n > 0 { // the disk is full: nobody is to read half a line
		err = errors.Join(err, r.f.Truncate(r.size))
		n = 0
	}
	r.size += int64(n)
	return n, err
}

// Open opens the file, unless it is open.
func (r *File) Open() error {
	if r.f != nil {
		return nil
	}
	f, err := os.OpenFile(r.Path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && r.Opened != nil {
		err = r.Opened(f)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	r.f, r.size = f, info.Size()
	return nil
}

// turn makes the file the older one.
func (r *File) turn() error {
	return errors.Join(r.Close(), os.Rename(r.Path, r.Path+Older))
}

// Close closes the file; a later Write opens it again.
func (r *File) Close() error {
	if r.f == nil {
		return nil
	}
	f := r.f
	r.f = nil
	return f.Close()
}

// Remove removes a file and the older one; what is not there is no error.
func Remove(path string) error {
	var errs []error
	for _, p := range []string{path, path + Older} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
