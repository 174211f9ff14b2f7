package bench

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/bifrost-rack/bifrost/bench/plots"
	"github.com/bifrost-rack/bifrost/bench/report"
)

// reportFile is what a report is called in its directory.
const reportFile = "report.json"

// Write writes a report into a directory that it makes: report.json, and a picture
// of each experiment in each format.
func Write(r *report.Report, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := create(filepath.Join(dir, reportFile), func(w io.Writer) error { return report.WriteJSON(w, r) }); err != nil {
		return err
	}
	for i := range r.Experiments {
		if err := plots.Save(&r.Experiments[i], dir); err != nil {
			return err
		}
	}
	return nil
}

// WriteDocument writes the evaluation as Markdown; the pictures are in dir.
func WriteDocument(r *report.Report, path, dir string) error {
	where, err := filepath.Rel(filepath.Dir(path), dir)
	if err != nil {
		return fmt.Errorf("write the document: %w", err)
	}
	pictures := func(name string) string { return filepath.ToSlash(filepath.Join(where, name+".svg")) }
	return create(path, func(w io.Writer) error { return report.WriteDocument(w, r, pictures) })
}

// Read reads a report from its directory.
func Read(dir string) (*report.Report, error) {
	f, err := os.Open(filepath.Join(dir, reportFile))
	if err != nil {
		return nil, fmt.Errorf("read the report: %w", err)
	}
	defer f.Close()
	return report.ReadJSON(f)
}

func create(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return errors.Join(write(f), f.Close())
}
