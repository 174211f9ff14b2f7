package admin

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

// backupPath is what a backup is asked for at. It has what callers have sent to services, so
// it takes the highest role.
const backupPath = "/v1/backup"

// backupType is what a backup is sent as.
const backupType = "application/gzip"

// registerBackup serves backups.
func (s *Server) registerBackup(h huma.API) {
	op := operation(http.MethodPost, backupPath, "backup", "Actions", "Copy the log, all ledgers and all regions as of one moment, while the rack works")
	op.Description += " The file is gzip of JSON lines. Its last line has the member `end`; a file without one is not whole, and `bifrost restore` refuses it."
	op.Errors = append(op.Errors, http.StatusConflict)
	op.Responses = map[string]*huma.Response{"200": {
		Description: "The backup", Content: map[string]*huma.MediaType{backupType: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}},
	}}
	huma.Register(h, op, func(ctx context.Context, _ *none) (*huma.StreamResponse, error) {
		b, err := s.backend.Backup(ctx)
		if err != nil {
			return nil, failed(err)
		}
		return &huma.StreamResponse{Body: func(ctx huma.Context) {
			r, w := humago.Unwrap(ctx)
			w.Header().Set("Content-Type", backupType)
			if err := b.Write(r.Context(), patient{w, http.NewResponseController(w)}); err != nil { // the reader misses the end
				s.log.Warn("backup", "remote", r.RemoteAddr, "error", err)
			}
		}}, nil
	})
}

// patient writes an answer that may take long as a whole: each part has requestTimeout.
type patient struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (p patient) Write(b []byte) (int, error) {
	if err := p.control.SetWriteDeadline(time.Now().Add(requestTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	return p.ResponseWriter.Write(b)
}
