// Package restore turns a backup into the files that a fresh rack begins with.
package restore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/gatekeeper/backup"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
)

// Files writes the log of a backup into a new directory, and the ledgers and regions of each blade
// into a directory of its name below another one. The bases of an increment lie beside it. What is there after an error is not whole.
func Files(file, logDir, ledgersDir string) (m backup.Manifest, err error) {
	s := &sink{logDir: logDir, ledgersDir: ledgersDir}
	if err := errors.Join(backup.ReadFile(file, s), s.close()); err != nil {
		return m, fmt.Errorf("%s: %w", file, err)
	}
	return s.manifest, nil
}

// Check opens what Files has written, as the Gatekeeper and the memory servers would, and reads all of it.
func Check(m *backup.Manifest, logDir, ledgersDir string) error {
	log, err := wal.Open(logDir, wal.Options{})
	if err != nil {
		return err
	}
	records := 0
	for _, problem := range log.Records() {
		if err = problem; err != nil {
			break
		}
		records++
	}
	if err = errors.Join(err, log.Close()); err != nil {
		return fmt.Errorf("the log: %w", err)
	}
	if records == 0 {
		return errors.New("the log is empty")
	}
	for _, b := range m.Blades {
		disk, err := memory.OpenLedgerDisk(filepath.Join(ledgersDir, b.Name), false)
		if err == nil {
			err = disk.Close()
		}
		if err != nil {
			return fmt.Errorf("the ledgers of blade %s: %w", b.Name, err)
		}
	}
	return nil
}

// batchSize is how many bytes of records are logged at a time.
const batchSize = 1 << 20

// sink writes the files of a backup.
type sink struct {
	logDir, ledgersDir string

	manifest backup.Manifest
	log      *wal.Log
	batch    wal.Batch
	size     int // of packets and data in it
	ledgers  *memory.LedgerDisk
	blade    string // whose these are
}

// Manifest implements backup.Sink.
func (s *sink) Manifest(m backup.Manifest) (err error) {
	s.manifest = m
	for _, b := range m.Blades {
		if b.Name != filepath.Base(b.Name) || !filepath.IsLocal(b.Name) {
			return fmt.Errorf("the backup names a blade %q, which cannot be the name of a directory", b.Name)
		}
		if err := os.MkdirAll(filepath.Join(s.ledgersDir, b.Name), 0o700); err != nil {
			return err
		}
	}
	s.log, err = wal.Open(s.logDir, wal.Options{Sync: true})
	return err
}

// Record implements backup.Sink.
func (s *sink) Record(r wal.Record) error {
	s.batch.Put(r)
	if s.size += len(r.Data); s.size < batchSize {
		return nil
	}
	return s.flush()
}

// flush logs the batch.
func (s *sink) flush() error {
	b := s.batch
	s.batch, s.size = wal.Batch{}, 0
	return s.log.Append(context.Background(), &b)
}

// Ledgers implements backup.Sink.
func (s *sink) Ledgers(of backup.Blade, ledgers []control.LedgerContent) error {
	if err := s.open(of); err != nil {
		return err
	}
	return s.ledgers.Restore(of.Birth, of.Rack, ledgers)
}

// Regions implements backup.Sink.
func (s *sink) Regions(of backup.Blade, part []byte) error {
	if err := s.open(of); err != nil {
		return err
	}
	return s.ledgers.RestoreRegions(memory.SavedRegions{Rack: of.Rack, Boot: of.Boot, Machine: of.Machine, Incarnation: of.Incarnation}, part)
}

// open opens the directory of a blade.
func (s *sink) open(of backup.Blade) (err error) {
	if s.blade != of.Name {
		if err := s.closeLedgers(); err != nil {
			return err
		}
		if s.ledgers, err = memory.OpenLedgerDisk(filepath.Join(s.ledgersDir, of.Name), true); err != nil {
			return err
		}
		s.blade = of.Name
	}
	return nil
}

func (s *sink) closeLedgers() error {
	if s.ledgers == nil {
		return nil
	}
	err := s.ledgers.Close()
	s.ledgers = nil
	return err
}

func (s *sink) close() error {
	if s.log == nil {
		return nil
	}
	return errors.Join(s.flush(), s.log.Close(), s.closeLedgers())
}
