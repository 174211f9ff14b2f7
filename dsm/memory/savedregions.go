package memory

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/internal/disk"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// A directory of ledgers may have regions of a backup, too, in a file beside the ledgers: a
// header, then items as the backup has them (backup.go), each behind its length. The server
// that begins with the directory loads them, as the start of the daemon that had them,
// and removes the file before it answers anybody. So no later start takes old regions for its
// own.

// SavedRegions says whose regions a file has.
type SavedRegions struct {
	Rack    uint64 // control.Welcome.Began
	Boot    uint64 // of the daemon that had them
	Machine uint8
	// Incarnation is the copy's (control.Mirror).
	Incarnation uint32
}

const (
	savedFile  = "regions"
	savedMagic = "bifrost regions 3\n"
)

// Boot is what the daemon that serves this directory has for its boot number: that of the
// regions which it begins with, if there are any, else the one that it has drawn.
func (d *LedgerDisk) Boot(drawn uint64) uint64 {
	if d == nil || d.saved == nil {
		return drawn
	}
	return d.saved.Boot
}

// savedHeader is the size of what the file begins with.
var savedHeader = len(savedMagic) + binary.Size(SavedRegions{})

func (d *LedgerDisk) savedPath() string { return filepath.Join(d.directory, savedFile) }

// corruptRegions says what to do about regions that cannot be read.
func (d *LedgerDisk) corruptRegions(why error) error {
	return &disk.RefusedError{
		Err:    fmt.Errorf("the regions of a backup in %s are %w: %w", d.savedPath(), disk.ErrCorrupt, why),
		Remedy: "restore the backup again; or remove the file, to begin without regions",
	}
}

// readSaved reads the header of the file, if there is one.
func (d *LedgerDisk) readSaved() error {
	f, err := os.Open(d.savedPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, savedHeader)
	var saved SavedRegions
	if _, err := io.ReadFull(f, head); err != nil {
		return d.corruptRegions(err)
	}
	_, err = binary.Decode(head[len(savedMagic):], binary.BigEndian, &saved)
	if err != nil || string(head[:len(savedMagic)]) != savedMagic || saved.Boot == 0 {
		return d.corruptRegions(errors.New("it has another header"))
	}
	d.saved = &saved
	return nil
}

// RestoreRegions adds a part of a backup's regions to the directory. Close has the disk take
// them.
func (d *LedgerDisk) RestoreRegions(of SavedRegions, part []byte) error {
	if d.regions == nil {
		f, err := os.OpenFile(d.savedPath(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		d.regions = f
		if d.saved == nil {
			head, err := binary.Append([]byte(savedMagic), binary.BigEndian, of)
			if err != nil {
				return err
			}
			part = append(head, part...)
			d.saved = &of
		}
	}
	if *d.saved != of {
		return fault.New(fault.BadRequest, "restore regions", "the directory has other regions already")
	}
	_, err := d.regions.Write(part)
	return err
}

func (d *LedgerDisk) closeRegions() error {
	if d.regions == nil {
		return nil
	}
	f := d.regions
	d.regions = nil
	return errors.Join(f.Sync(), f.Close())
}

// removeSaved removes the file, for good.
func (d *LedgerDisk) removeSaved() error {
	d.saved = nil
	if err := os.Remove(d.savedPath()); err != nil {
		return err
	}
	f, err := os.Open(d.directory)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// LoadSaved loads the regions that the server's directory of ledgers has, and removes their
// file. It is to be called before Run, and after KeepUndo. Regions of another rack or machine are
// removed, and not loaded. NoSpace means that they are too many for this server.
func (s *Server) LoadSaved() (loaded bool, err error) {
	d := s.cfg.Ledgers.Disk
	if d == nil || d.saved == nil {
		return false, nil
	}
	if d.saved.Rack == s.cfg.Ledgers.Rack && d.saved.Machine == s.cfg.Machine {
		if err := s.now(func(*store.Store) error { return s.load(d) }); err != nil {
			return false, err
		}
		loaded = true
	}
	return loaded, d.removeSaved()
}

// load takes the items of the file.
func (s *Server) load(d *LedgerDisk) error {
	f, err := os.Open(d.savedPath())
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(int64(savedHeader), io.SeekStart); err != nil {
		return err
	}
	r := bufio.NewReaderSize(f, 1<<20)
	s.store.BeFilled(d.saved.Incarnation)
	item := make([]byte, spoolItem)
	for {
		var size [4]byte
		_, err := io.ReadFull(r, size[:])
		if errors.Is(err, io.EOF) {
			break
		}
		n := binary.BigEndian.Uint32(size[:])
		if err == nil && n > spoolItem {
			err = fmt.Errorf("an item of %d bytes: at most %d", n, spoolItem)
		}
		if err == nil {
			_, err = io.ReadFull(r, item[:n])
		}
		if err == nil {
			err = s.store.Take(item[:n])
		}
		if fault.CodeOf(err) == fault.NoSpace {
			return fmt.Errorf("the regions of the backup in %s do not fit: %w", d.savedPath(), err)
		}
		if err != nil {
			return d.corruptRegions(err)
		}
	}
	if err := s.store.Loaded(); err != nil {
		return d.corruptRegions(err)
	}
	return nil
}
