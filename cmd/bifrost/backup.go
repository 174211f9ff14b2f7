package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/gatekeeper/backup"
	"github.com/bifrost-rack/bifrost/gatekeeper/backup/restore"
	"github.com/bifrost-rack/bifrost/p4switch/shared/process"
)

// backupOptions are the flags of `bifrost backup`.
type backupOptions struct {
	clientOptions
	since      string
	every      time.Duration
	full, keep int
}

func newBackupCmd() *cobra.Command {
	var o backupOptions
	cmd := o.command(&cobra.Command{
		Use:   "backup FILE|-|DIRECTORY",
		Short: "Save deployments, policies, memory regions, and the states of services and mains",
		Long: `Save the rack as of one moment, while it works. The backup has deployments, policies,
the states of services, the checkpoints of durable mains, memory regions, and the
exactly-once calls that are under way. A restored rack goes on as if all its programs had
been killed at that moment. With - the backup goes to standard output, when it is whole.

With --since the backup is an increment: it has only what the backup in another file has
not. It is read together with that file, which must stay beside it under its name: so both
are in one directory, unless the increment goes to standard output.

With --every, backups go into a directory until Ctrl-C: first a whole one, then
increments of it, then a whole one again. Those that --keep does not ask for are removed.

The backup has neither the files of programs nor the tokens of the admin API.`,
		Example: `  bifrost backup rack.backup
  bifrost backup --since rack.backup rack-2.backup
  bifrost backup - | rclone rcat remote:rack.backup
  bifrost backup --every 1h /var/backups/rack
  bifrost restore --check rack.backup`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.every != 0 && (o.since != "" || args[0] == "-") {
				return errors.New("--every takes a directory, and chooses itself what a backup is an increment of")
			}
			if err := o.mayFollow(args[0]); err != nil {
				return err
			}
			return o.run(func(c *client.Client) error {
				if o.every != 0 {
					return o.schedule(cmd, c, args[0])
				}
				return o.once(cmd, c, args[0])
			})
		},
	})
	f := cmd.Flags()
	f.StringVar(&o.since, "since", "", "save only what the backup in this `FILE` has not")
	f.DurationVar(&o.every, "every", 0, "make a backup in a directory each time this has passed, and one at once")
	f.IntVar(&o.full, "full", 24, "with --every: each `NUMBER`th backup is whole")
	f.IntVar(&o.keep, "keep", 2, "with --every: keep the last `NUMBER` whole backups, and their increments")
	return cmd
}

// mayFollow refuses an increment that could not be read where it is to be, or that would take the place of its base.
func (o *backupOptions) mayFollow(name string) error {
	if o.since == "" || name == "-" {
		return nil
	}
	base, err := os.Stat(filepath.Dir(o.since))
	if err != nil {
		return err
	}
	dir, err := os.Stat(filepath.Dir(name))
	switch {
	case err != nil:
		return err
	case !os.SameFile(base, dir):
		return fmt.Errorf("an increment is read together with %[1]s: name a file in %[2]s, or copy %[1]s first to where the increment is to be", o.since, filepath.Dir(o.since))
	case filepath.Base(o.since) == filepath.Base(name):
		return fmt.Errorf("an increment is read together with %s: give it another name", o.since)
	}
	return nil
}

// once makes one backup.
func (o *backupOptions) once(cmd *cobra.Command, c *client.Client, name string) error {
	says := cmd.OutOrStdout()
	file := name
	if name == "-" {
		says = cmd.ErrOrStderr()
		dir, err := os.MkdirTemp("", "bifrost-backup-*")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		file = filepath.Join(dir, "backup")
	}
	m, err := saveBackup(cmd.Context(), c, file, o.since)
	if err == nil && name == "-" {
		err = copyOut(cmd.OutOrStdout(), file)
	}
	if err != nil {
		return err
	}
	if o.json {
		return jsonLines(says, []backup.Manifest{m})
	}
	return printManifest(says, "saved", &m)
}

// copyOut writes a file as it is, which no terminal should get.
func copyOut(w io.Writer, file string) error {
	if p, text := w.(*process.Printable); text {
		if w = p.W; w == io.Writer(os.Stdout) && isTerminal(os.Stdout) {
			return errors.New("the backup is no text: send standard output to a file or a program")
		}
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// saveBackup writes a backup to a file that is there only when it is whole. With since it is an increment of the backup in that file, which must
// be in the same directory when the backup is read.
func saveBackup(ctx context.Context, c *client.Client, name, since string) (m backup.Manifest, err error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*") // for this user only
	if err != nil {
		return m, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if since != "" {
		r, w := io.Pipe()
		sent := make(chan error, 1)
		go func() {
			err := c.Backup(ctx, w)
			sent <- err
			w.CloseWithError(err)
		}()
		m, err = backup.Increment(r, since, f)
		r.CloseWithError(err)
		if problem := <-sent; err == nil {
			err = problem
		}
	} else if err = c.Backup(ctx, f); err == nil {
		if _, err = f.Seek(0, io.SeekStart); err == nil {
			err = backup.Read(f, backup.ManifestTo(&m))
		}
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	return m, err
}

// backupSuffix is what the names of scheduled backups end with; they begin with backupPrefix and the time, so that they are in order.
const (
	backupPrefix = "bifrost-"
	backupSuffix = ".backup"
	backupTime   = "20060102T150405.000Z"
)

// scheduled is a backup in a directory of scheduled ones.
type scheduled struct {
	name string
	base string // "" if it is whole
}

// schedule makes backups until ctx ends. One that fails is told of, and the next one comes in its time.
func (o *backupOptions) schedule(cmd *cobra.Command, c *client.Client, dir string) error {
	if o.every < time.Second || o.full < 1 || o.keep < 1 {
		return errors.New("--every must be a second or more, --full and --keep 1 or more")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	ctx := cmd.Context()
	tick := time.NewTicker(o.every)
	defer tick.Stop()
	for {
		if err := o.turn(ctx, cmd.OutOrStdout(), c, dir, time.Now()); err != nil && ctx.Err() == nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s no backup was made: %v\n", time.Now().Format(time.DateTime), err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// turn makes the backup that is due, and removes those that are not wanted any more.
func (o *backupOptions) turn(ctx context.Context, w io.Writer, c *client.Client, dir string, now time.Time) error {
	there, err := scheduledIn(dir)
	if err != nil {
		return err
	}
	name := nameAfter(there, now)
	since := ""
	if base := baseOfNext(there, o.full); base != "" {
		since = filepath.Join(dir, base)
	}
	m, err := saveBackup(ctx, c, filepath.Join(dir, name), since)
	if errors.Is(err, backup.ErrBase) || errors.Is(err, backup.ErrCut) || errors.Is(err, backup.ErrFormat) { // of another rack, say
		m, err = saveBackup(ctx, c, filepath.Join(dir, name), "")
	}
	if err != nil {
		return err
	}
	if there, err = scheduledIn(dir); err != nil {
		return err
	}
	for _, old := range surplus(there, o.keep) {
		if err := os.Remove(filepath.Join(dir, old)); err != nil {
			return err
		}
	}
	return printManifest(w, name, &m)
}

// nameAfter is the name of the backup of a moment. It comes behind all that are there, also if the clock was set back.
func nameAfter(there []scheduled, now time.Time) string {
	nameOf := func(at time.Time) string { return backupPrefix + at.UTC().Format(backupTime) + backupSuffix }
	if len(there) > 0 {
		last, err := time.Parse(backupPrefix+backupTime+backupSuffix, there[len(there)-1].name)
		if next := last.Add(time.Millisecond); err == nil && now.Before(next) {
			return nameOf(next)
		}
	}
	return nameOf(now)
}

// scheduledIn lists the scheduled backups of a directory, the oldest first. Others are left out.
func scheduledIn(dir string) (all []scheduled, err error) {
	names, err := filepath.Glob(filepath.Join(dir, backupPrefix+"*"+backupSuffix)) // sorted
	for _, name := range names {
		m, problem := backup.ManifestOf(name)
		if problem != nil {
			continue
		}
		s := scheduled{name: filepath.Base(name)}
		if m.Base != nil {
			s.base = m.Base.Name
		}
		all = append(all, s)
	}
	return all, err
}

// baseOfNext is the whole backup that the next one is an increment of; "" if that is to be whole.
func baseOfNext(there []scheduled, full int) string {
	for i := range slices.Backward(there) {
		if there[i].base != "" {
			continue
		}
		if len(there)-i >= full {
			return ""
		}
		return there[i].name
	}
	return ""
}

// surplus are the backups that are older than the last keep whole ones.
func surplus(there []scheduled, keep int) (old []string) {
	for i := range slices.Backward(there) {
		if there[i].base != "" {
			continue
		}
		if keep--; keep == 0 {
			for _, s := range there[:i] {
				old = append(old, s.name)
			}
			return old
		}
	}
	return nil
}

func printManifest(w io.Writer, done string, m *backup.Manifest) error {
	what := "the rack"
	if m.Base != nil {
		what = "what " + m.Base.Name + " has not of the rack"
	}
	text := fmt.Sprintf("%s: "+what+" as of %s, %d memory blades with %d regions", done, m.Time.Local().Format("2006-01-02 15:04:05"), len(m.Blades), m.Regions-m.Lacks)
	if m.Lacks > 0 {
		text += fmt.Sprintf("; without %d regions of machines that were not in service", m.Lacks)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

func newRestoreCmd() *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use:   "restore FILE [DIRECTORY]",
		Short: "Turn a backup into the files that a fresh rack begins with",
		Long: `Turn a backup into the files that a fresh rack begins with, in a new directory:

  DIRECTORY/log            the directory for bifrost gatekeeper --log
  DIRECTORY/ledgers/BLADE  the directory for bifrost memory --ledger-dir of this blade,
                           with its ledgers, and its regions, which the daemon loads

Copy each directory to where its daemon looks for it, then start the rack. Give the blades
the names and the switch ports that they had. The files that an increment goes with must
lie beside it.

With --check, nothing is kept: the backup is restored into a temporary directory ($TMPDIR),
the log and the ledgers are opened as their daemons would open them, and all is removed.

Use a backup for one rack only, and only when the rack that was saved is off for good:
otherwise both racks go on with the same calls. For a rack of namespaces, bifrost rack up
--backup FILE does all this.`,
		Example: "  bifrost restore rack.backup restored\n  bifrost restore --check rack.backup\n  bifrost gatekeeper --switch unix:/run/bifrost-switch/p4rt.sock --log restored/log",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if check == (len(args) == 2) {
				return errors.New("name the directory for the files, or give --check")
			}
			if check {
				m, err := checkBackup(args[0])
				if err != nil {
					return err
				}
				return printManifest(cmd.OutOrStdout(), "can be restored", &m)
			}
			m, err := restoreInto(args[0], args[1])
			if err != nil {
				return err
			}
			return printManifest(cmd.OutOrStdout(), "restored", &m)
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "only see whether the backup can be restored")
	return cmd
}

// checkBackup restores a backup, and opens what is restored.
func checkBackup(file string) (m backup.Manifest, err error) {
	dir, err := os.MkdirTemp("", "bifrost-check-*")
	if err != nil {
		return m, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	log, ledgers := filepath.Join(dir, "log"), filepath.Join(dir, "ledgers")
	if m, err = restore.Files(file, log, ledgers); err != nil {
		return m, err
	}
	if err := restore.Check(&m, log, ledgers); err != nil {
		return m, fmt.Errorf("%s: %w", file, err)
	}
	return m, nil
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
