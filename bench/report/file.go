package report

import (
	"encoding/json"
	"fmt"
	"io"
)

// WriteJSON writes a report.
func WriteJSON(w io.Writer, r *Report) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// ReadJSON reads a report.
func ReadJSON(from io.Reader) (*Report, error) {
	r := &Report{}
	if err := json.NewDecoder(from).Decode(r); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	if r.Schema != Schema {
		return nil, fmt.Errorf("report: of schema %d; this program knows %d", r.Schema, Schema)
	}
	return r, nil
}
