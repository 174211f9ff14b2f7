package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/gatekeeper/backup"
	"github.com/bifrost-rack/bifrost/gatekeeper/backup/restore"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
)

func newBackupCmd() *cobra.Command {
	var o clientOptions
	return o.command(&cobra.Command{
		Use:   "backup FILE",
		Short: "Save deployments, policies, memory regions, and the states of services and mains",
		Long: `Save the rack as of one moment, while it works. The backup has deployments, policies,
the states of services, the checkpoints of durable mains, memory regions, and the
exactly-once calls that are under way. A restored rack goes on as if all its programs had
been killed at that moment.

The backup has neither the files of programs nor the tokens of the admin API.`,
		Example: "  bifrost backup rack.backup\n  bifrost restore rack.backup restored",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(func(c *client.Client) error {
				m, err := saveBackup(cmd.Context(), c, args[0])
				if err != nil {
					return err
				}
				if o.json {
					return jsonLines(cmd.OutOrStdout(), []backup.Manifest{m})
				}
				return printManifest(cmd.OutOrStdout(), "saved", &m)
			})
		},
	})
}

// saveBackup writes a backup to a file that is there only when it is whole.
func saveBackup(ctx context.Context, c *client.Client, name string) (m backup.Manifest, err error) {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*") // for this user only
	if err != nil {
		return m, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	err = c.Backup(ctx, f)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	var of manifest
	if err == nil {
		err = backup.Read(f, &of)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	return of.of, err
}

// manifest is a sink that keeps what a backup is of.
type manifest struct{ of backup.Manifest }

func (m *manifest) Manifest(of backup.Manifest) error                   { m.of = of; return nil }
func (m *manifest) Record(wal.Record) error                             { return nil }
func (m *manifest) Ledgers(backup.Blade, []control.LedgerContent) error { return nil }
func (m *manifest) Regions(backup.Blade, []byte) error                  { return nil }

func printManifest(w io.Writer, done string, m *backup.Manifest) error {
	text := fmt.Sprintf("%s: the rack as of %s, %d memory blades with %d regions", done, m.Time.Local().Format("2006-01-02 15:04:05"), len(m.Blades), m.Regions-m.Lacks)
	if m.Lacks > 0 {
		text += fmt.Sprintf("; without %d regions of machines that were not in service", m.Lacks)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

func newRestoreCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "restore FILE DIRECTORY",
		Short: "Turn a backup into the files that a fresh rack begins with",
		Long: `Turn a backup into the files that a fresh rack begins with, in a new directory:

  DIRECTORY/log            the directory for bifrost gatekeeper --log
  DIRECTORY/ledgers/BLADE  the directory for bifrost memory --ledger-dir of this blade,
                           with its ledgers, and its regions, which the daemon loads

Copy each directory to where its daemon looks for it, then start the rack. Give the blades
the names and the switch ports that they had.

Use a backup for one rack only, and only when the rack that was saved is off for good:
otherwise both racks go on with the same calls. For a rack of namespaces, bifrost rack up
--backup FILE does all this.`,
		Example: "  bifrost restore rack.backup restored\n  bifrost gatekeeper --switch unix:/run/bifrost-switch/p4rt.sock --log restored/log",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := restoreInto(args[0], args[1])
			if err != nil {
				return err
			}
			return printManifest(cmd.OutOrStdout(), "restored", &m)
		},
	}
}

// restoreInto writes the files of a backup into a new directory, which is there only if they
// are whole.
func restoreInto(file, directory string) (m backup.Manifest, err error) {
	if _, err := os.Lstat(directory); err == nil {
		return m, fmt.Errorf("%s exists already: name a new directory", directory)
	}
	half := directory + ".half"
	if err := os.Mkdir(half, 0o700); err != nil {
		return m, err
	}
	if m, err = restore.Files(file, filepath.Join(half, "log"), filepath.Join(half, "ledgers")); err != nil {
		return m, errors.Join(err, os.RemoveAll(half))
	}
	return m, os.Rename(half, directory)
}
