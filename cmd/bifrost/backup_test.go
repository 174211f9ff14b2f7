package main

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/p4switch/shared/process"
)

// A rack is saved to a file, then what is new of it to a second one, and to standard output; each can be restored, and the second one has what was
// written last. One that is damaged, or whose base is missing, cannot, and the check says why.
func TestBackup(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	t.Setenv("TMPDIR", t.TempDir()) // others' directories are none of its business
	blades := [][]string{{"m1", "m2"}}
	rack, err := simrack.Start(ctx, simrack.Config{Heartbeat: time.Minute, Machines: blades, Disk: new(wal.Disk)})
	must(t, err)
	defer func() { must(t, rack.Close()) }()
	address := serveRackAdmin(ctx, t, rack)
	n, err := rack.Join(ctx, "c1", "writer")
	must(t, err)
	data := make([]byte, 1<<20)
	random := rand.New(rand.NewPCG(3, 9)) //nolint:gosec // the same each time
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	p, err := n.Memory().Alloc(ctx, uint64(len(data)))
	must(t, err)
	_, err = n.Memory().Write(ctx, p, data)
	must(t, err)
	t.Chdir(t.TempDir())
	run := func(command string) (out, errors string) {
		t.Helper()
		out, errors, err := waited(t, strings.Fields(command)...)
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, errors)
		}
		return out, errors
	}
	refused := func(command, want string) {
		t.Helper()
		if out, _, err := waited(t, strings.Fields(command)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %s; want %q", command, err, out, want)
		}
	}
	run("backup full --admin-addr " + address)
	_, err = n.Memory().Write(ctx, p.Add(512<<10), []byte("later"))
	must(t, err)
	if out, _ := run("backup --since full second --admin-addr " + address); !strings.HasPrefix(out, "saved: what full has not of the rack as of ") {
		t.Errorf("the increment: %s", out)
	}
	whole, err := os.Stat("full")
	must(t, err)
	if part, err := os.Stat("second"); err != nil || part.Size() > whole.Size()/4 {
		t.Errorf("the increment has %d bytes of %d, %v", part.Size(), whole.Size(), err)
	}
	var out, says bytes.Buffer
	root := newRoot()
	root.SetArgs([]string{"backup", "-", "--admin-addr", address})
	root.SetOut(&process.Printable{W: &out})
	root.SetErr(&process.Printable{W: &says})
	must(t, root.ExecuteContext(ctx))
	must(t, os.WriteFile("piped", out.Bytes(), 0o600))
	if !strings.HasPrefix(says.String(), "saved: the rack as of ") {
		t.Errorf("beside the backup it says %q", says.String())
	}
	for _, file := range []string{"full", "second", "piped"} {
		if out, _ := run("restore --check " + file); !strings.HasPrefix(out, "can be restored: ") || !strings.Contains(out, "3 memory blades with 1 regions") {
			t.Errorf("%s: %s", file, out)
		}
	}
	want := append(append(data[512<<10-50:512<<10:512<<10], "later"...), data[512<<10+5:][:50]...)
	for i, file := range []string{"second", "piped", "full"} {
		run("restore " + file + " " + file + ".restored")
		all, err := filepath.Glob(file + ".restored/ledgers/*/regions")
		must(t, err)
		has := slices.ContainsFunc(all, func(name string) bool {
			b, err := os.ReadFile(name)
			must(t, err)
			return bytes.Contains(b, want)
		})
		if has != (i < 2) {
			t.Errorf("%s has what was written before it: %t", file, has)
		}
	}

	refused("restore --check second there", "name the directory for the files, or give --check")
	refused("restore second", "name the directory for the files, or give --check")
	refused("backup --every 1h --since full dir", "--every takes a directory")
	must(t, os.Mkdir("other", 0o700))
	refused("backup --since full other/second --admin-addr "+address, "an increment is read together with full: name a file in ., or copy full first")
	refused("backup --since full ./full --admin-addr "+address, "an increment is read together with full: give it another name")
	run("restore --check full")
	refused("backup --every 1ms dir --admin-addr "+address, "--every must be a second or more")
	file, err := os.ReadFile("piped")
	must(t, err)
	must(t, os.WriteFile("cut", file[:len(file)/2], 0o600))
	refused("restore --check cut", "the backup is damaged, or not whole")
	must(t, os.Rename("full", "elsewhere"))
	refused("restore --check second", "full, which must lie beside it")
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "bifrost-*")); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}

	o := backupOptions{every: time.Hour, full: 3, keep: 2}
	o.address = address
	c, err := o.connect()
	must(t, err)
	defer c.Close()
	must(t, os.Mkdir("every", 0o700))
	begin := time.Date(2026, 11, 28, 3, 0, 0, 0, time.UTC)
	for i := range 8 {
		at := begin.Add(time.Duration(i) * time.Hour)
		if i == 7 {
			at = begin // the clock was set back
		}
		must(t, o.turn(ctx, new(bytes.Buffer), c, "every", at))
	}
	there, err := scheduledIn("every")
	must(t, err)
	var kinds []string
	for _, s := range there {
		run("restore --check " + filepath.Join("every", s.name))
		kinds = append(kinds, s.name[len(backupPrefix)+9:len(backupPrefix)+11]+map[bool]string{true: " whole", false: ""}[s.base == ""])
	}
	if want := []string{"06 whole", "07", "08", "09 whole", "09"}; !slices.Equal(kinds, want) {
		t.Errorf("after eight turns there are %q, want %q", kinds, want)
	}
}
