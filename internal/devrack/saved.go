package devrack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/backup/restore"
)

// Log and ledgers are in files all the time, but regions are in memory. So a rack that ends in order leaves a backup in its directory,
// and the next one begins with that. A rack that is killed leaves none: the next one begins with its log and ledgers, without regions.
//
//	DIR/saved ──▶ DIR/restored/log, DIR/restored/ledgers ──▶ DIR/log, DIR/ledgers
//
// As long as the backup is there, nothing has happened since: whoever is interrupted in between begins again.

const (
	savedName    = "saved"
	restoredName = "restored"
)

// savePatience bounds how long the backup takes.
const savePatience = 5 * time.Minute

// save leaves a backup of a rack whose programs have ended.
func (d *directory) save(g *gatekeeper.Gatekeeper) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), savePatience)
	defer cancel()
	defer func() {
		if err != nil {
			err = fmt.Errorf("the next run begins without memory regions: %w", err)
		}
	}()
	b, err := g.Backup(ctx)
	if err != nil {
		return err
	}
	half := d.file(savedName + ".half")
	f, err := os.OpenFile(half, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = b.Write(ctx, f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(half))
	}
	return os.Rename(half, d.file(savedName))
}

// begin makes the backup of the former rack what this one begins with, if there is one. It reports whether there was a rack that has left
// none.
func (d *directory) begin() (killed bool, err error) {
	saved := d.file(savedName)
	if _, err := os.Lstat(saved); errors.Is(err, os.ErrNotExist) {
		_, err := os.Lstat(d.file("log"))
		return err == nil, nil
	}
	if err := d.restore(saved); err != nil {
		return false, fmt.Errorf("begin with the state of the last run: %w", err)
	}
	return false, nil
}

func (d *directory) restore(saved string) error {
	restored := d.file(restoredName)
	if err := os.RemoveAll(restored); err != nil {
		return err
	}
	if err := os.Mkdir(restored, 0o700); err != nil {
		return err
	}
	parts := []string{"log", "ledgers"}
	if _, err := restore.Files(saved, d.file(restoredName, parts[0]), d.file(restoredName, parts[1])); err != nil {
		return err
	}
	for _, part := range parts {
		if err := os.RemoveAll(d.file(part)); err != nil {
			return err
		}
		if err := os.Rename(d.file(restoredName, part), d.file(part)); err != nil {
			return err
		}
	}
	return errors.Join(os.Remove(saved), os.Remove(restored))
}
