package softswitch

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"golang.org/x/sys/unix"
)

// keptVariable makes the test's binary a switch: NAME SOCKET EXECUTOR INTERFACE1 INTERFACE2.
const keptVariable = "BIFROST_TEST_KEPT_SWITCH"

func init() {
	keptSwitch = func() bool {
		args := strings.Fields(os.Getenv(keptVariable))
		if len(args) != 5 {
			return false
		}
		if err := runKept(args[0], args[1], args[2], args[3:]); err != nil {
			fmt.Println(err)
		}
		return true
	}
}

func runKept(name, socket, executor string, interfaces []string) error {
	load := map[string]Loader{"auto": LoadAuto, "ebpf": LoadEBPF, "go": LoadGo}[executor]
	sw, err := New(Config{DeviceID: testDevice, CPUPort: sample.CPUPort, Load: load, Keep: name})
	if err != nil {
		return err
	}
	if _, err := sw.Restore(); err != nil {
		return err
	}
	var all []Interface
	for i, n := range interfaces {
		all = append(all, Interface{portOf(i + 1), n})
	}
	if err := sw.AttachInterfaces(all); err != nil {
		return err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	end, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	go func() { _ = sw.Serve(l) }()
	fmt.Println("ready")
	<-end.Done()
	return sw.Close()
}

// keptLab is a switch in a process of its own, between two hosts.
type keptLab struct {
	t       *testing.T
	name    string
	a, b    *lab
	process *exec.Cmd
	lives   int
	// apart gives the process mounts of its own, as ip netns exec does.
	apart    bool
	executor string // ebpf by default
}

func newKeptLab(t *testing.T) *keptLab {
	t.Helper()
	needRoot(t)
	k := &keptLab{t: t, name: fmt.Sprintf("test-%d", os.Getpid()), a: newLab(t, 1500), b: newLab(t, 1500)}
	k.a.knows(k.b)
	k.b.knows(k.a)
	t.Cleanup(func() {
		k.kill()
		if err := Discard(k.name); err != nil {
			t.Error(err)
		}
	})
	return k
}

// start starts the switch and returns when it serves; what it says instead, if it
// does not.
func (k *keptLab) start() (socket, says string) {
	k.t.Helper()
	k.lives++
	socket = filepath.Join(k.t.TempDir(), "s")
	k.process = exec.Command(os.Args[0])
	if k.apart {
		k.process = exec.Command("unshare", "--mount", "--propagation", "slave", "sh", "-c", `umount -l /sys && mount -t sysfs sysfs /sys && exec "$0"`, os.Args[0])
	}
	k.process.Env = append(os.Environ(), keptVariable+"="+strings.Join([]string{k.name, socket, cmp.Or(k.executor, "ebpf"), k.a.iface, k.b.iface}, " "))
	k.process.Stderr = os.Stderr
	out, err := k.process.StdoutPipe()
	if err == nil {
		err = k.process.Start()
	}
	if err != nil {
		k.t.Fatal(err)
	}
	says, _ = bufio.NewReader(out).ReadString('\n')
	return socket, strings.TrimSpace(says)
}

func (k *keptLab) run() *rack {
	k.t.Helper()
	socket, says := k.start()
	if says != "ready" {
		k.t.Fatal(says)
	}
	r := connect(k.t, socket, sample.Prefix)
	r.lead()
	return r
}

func (k *keptLab) kill() {
	if k.process != nil {
		_ = k.process.Process.Kill()
		_ = k.process.Wait()
		k.process = nil
	}
}

// stream sends numbered datagrams from one host to the other, some of them under
// way at a time. Each must arrive, in order.
type stream struct {
	arrived chan uint64
	stop    chan struct{}
	done    chan error
}

func (k *keptLab) stream() *stream {
	const window = 8
	from, to := k.a.udp(1000), k.b.udp(7)
	s := &stream{arrived: make(chan uint64, 1), stop: make(chan struct{}), done: make(chan error, 1)}
	peer := netip.AddrPortFrom(k.b.addr, 7)
	go func() {
		var b [8]byte
		for sent, got := uint64(0), uint64(0); ; {
			select {
			case <-s.stop:
				s.done <- nil
				return
			default:
			}
			for ; sent < got+window; sent++ {
				binary.BigEndian.PutUint64(b[:], sent)
				if _, err := from.WriteToUDPAddrPort(b[:], peer); err != nil {
					s.done <- err
					return
				}
			}
			_ = to.SetReadDeadline(time.Now().Add(patience))
			if n, err := to.Read(b[:]); err != nil || n != 8 || binary.BigEndian.Uint64(b[:]) != got {
				s.done <- fmt.Errorf("after %d datagrams: %d, %w", got, binary.BigEndian.Uint64(b[:]), err)
				return
			}
			got++
			select { // the newest
			case <-s.arrived:
			default:
			}
			s.arrived <- got
		}
	}()
	return s
}

// more returns when n more datagrams have arrived.
func (s *stream) more(t *testing.T, n uint64) {
	t.Helper()
	var end uint64
	for {
		select {
		case got := <-s.arrived:
			if end == 0 {
				end = got + n
			} else if got >= end {
				return
			}
		case err := <-s.done:
			t.Fatal(err)
		}
	}
}

// read reads all entries, by their P4Runtime text.
func (r *rack) readAll() map[string]bool {
	r.t.Helper()
	q, err := r.client.Read(context.Background(), &p4v1.ReadRequest{DeviceId: testDevice, Entities: []*p4v1.Entity{
		{Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{}}},
	}})
	all := map[string]bool{}
	for err == nil {
		var m *p4v1.ReadResponse
		if m, err = q.Recv(); err == nil {
			for _, e := range m.GetEntities() {
				all[strings.Join(strings.Fields(e.String()), " ")] = true // String varies its spaces
			}
		}
	}
	return all
}

// A switch is killed and started again, three times, and replaced while packets
// cross it: none is lost, and no entry. Then it ends as it should, and leaves
// nothing behind.
func TestKeep_Killed(t *testing.T) {
	k := newKeptLab(t)
	r := k.run()
	r.load(sample.JSON, sample.Info)
	r.tell(1, k.a)
	r.tell(2, k.b)
	before := r.readAll()
	s := k.stream()
	s.more(t, 100)
	for range 3 {
		k.kill()
		s.more(t, 300) // nobody is there
		info := r.info
		r = k.run()
		r.info = info
		s.more(t, 300)
		after := r.readAll()
		if len(after) != len(before) {
			t.Errorf("%d entries of %d", len(after), len(before))
		}
		for e := range before {
			if !after[e] {
				t.Errorf("lost: %s", e)
			}
		}
	}
	close(s.stop)
	if err := <-s.done; err != nil {
		t.Error(err)
	}
	// The entries are not only told: one that is deleted is in force no more.
	addr := k.b.addr.As16()
	r.write(p4v1.Update_DELETE, r.entry("l3", "to_hop", [][]byte{{0, 2}}, datapath.Match{Value: addr[:], PrefixLen: 128}))
	c, to := k.a.udp(1001), k.b.udp(9)
	sendUDP(t, c, []byte("lost"), k.b, 9)
	_ = to.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if n, err := to.Read(make([]byte, 10)); err == nil {
		t.Errorf("%d bytes came through without a route", n)
	}
	if err := k.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := k.process.Wait(); err != nil {
		t.Error(err)
	}
	k.process = nil
	k.nothingLeft()
}

// nothingLeft expects that the switch has left nothing behind.
func (k *keptLab) nothingLeft() {
	k.t.Helper()
	dir, pins, _ := keepDirs(k.name)
	for _, path := range []string{dir, pins} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			k.t.Errorf("%s is left: %v", path, err)
		}
	}
}

// Registers outlive a switch that is killed, also when its program was updated before, on either executor. A program whose registers were cleared finds
// them empty in the next process, too. When the switch ends as it should, nothing is left.
func TestKeep_Registers(t *testing.T) {
	for _, executor := range []string{"go", "ebpf"} {
		t.Run(executor, func(t *testing.T) {
			k := newKeptLab(t)
			k.executor = executor
			r := k.run()
			r.load(sample.JSON, sample.Info)
			config := r.config.GetConfig()
			again := func(when string, value byte) {
				t.Helper()
				k.kill()
				info := r.info
				r = k.run()
				r.info = info
				r.haveCells(when, value)
			}
			r.setCells(20)
			again("after the switch was killed", 20)
			again("once more", 20)
			r.update(reconcile, false, config)
			r.setCells(30)
			again("after a reconciliation", 30)
			r.update(anew, true, config)
			r.haveCells("another program", 30)
			again("another program, killed", 30)
			r.update(anew, false, config)
			again("after they were cleared", 0)
			r.setCells(40)
			k.executor = "auto" // stays with the executor that has the registers
			again("no executor named", 40)
			dir, _, _ := keepDirs(k.name)
			files, _ := filepath.Glob(filepath.Join(dir, registerFiles+"*"))
			if executor == "ebpf" && len(files) != 0 || executor == "go" && len(files) != 1 {
				t.Errorf("files with registers: %q", files)
			}
			for _, f := range files { // it takes room where something was written
				var st unix.Stat_t
				if err := unix.Stat(f, &st); err != nil || st.Size < 8<<20 || st.Blocks > 1<<11 {
					t.Errorf("%s has %d bytes in %d blocks, %v", f, st.Size, st.Blocks, err)
				}
			}
			if err := k.process.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := k.process.Wait(); err != nil {
				t.Error(err)
			}
			k.process = nil
			k.nothingLeft()
		})
	}
}

// A role does not go to a lower election id than it has had, though the switch was killed since: of before the program
// was loaded, and of after that, and after what is kept was written anew.
func TestKeep_Elections(t *testing.T) {
	k := newKeptLab(t)
	socket, says := k.start()
	if says != "ready" {
		t.Fatal(says)
	}
	other := connect(t, socket, "")
	if !other.elected("watcher", 9) {
		t.Fatal("nobody else is there")
	}
	r := connect(t, socket, sample.Prefix)
	r.lead()
	r.load(sample.JSON, sample.Info)
	if !r.elected("", 5) {
		t.Fatal("5 is more than 1")
	}
	for range 2 {
		k.kill()
		if socket, says = k.start(); says != "ready" {
			t.Fatal(says)
		}
		for role, highest := range map[string]uint64{"": 5, "watcher": 9} {
			r := connect(t, socket, sample.Prefix)
			if r.elected(role, highest-1) {
				t.Errorf("role %q went to %d, and has had %d", role, highest-1, highest)
			}
			if !r.elected(role, highest) {
				t.Errorf("role %q did not go to %d, which it had before", role, highest)
			}
		}
	}
}

// Packets to the controller that come while nobody is there arrive late, and those under
// way when the switch is killed arrive, once or twice; none is changed.
func TestKeep_PacketsToController(t *testing.T) {
	k := newKeptLab(t)
	r := k.run()
	r.load(sample.JSON, sample.Info)
	r.tell(1, k.a)
	r.tell(2, k.b)
	from := k.a.udp(1000)
	sent := map[uint64][]byte{}
	send := func(n int) {
		for range n {
			data := bytes.Repeat([]byte{byte(len(sent))}, 8+len(sent)*97%1300)
			binary.BigEndian.PutUint64(data, uint64(len(sent)))
			sent[uint64(len(sent))] = data
			sendUDP(t, from, data, k.b, sample.PortControl) // which the program holds
		}
	}
	arrived := map[uint64]int{}
	arrive := func(m *p4v1.StreamMessageResponse) {
		in := m.GetPacket()
		if in == nil {
			return
		}
		u, err := frame.ParseUDP6(in.GetPayload()) // which checks the checksum
		if err != nil || len(u.Payload) < 8 {
			t.Fatalf("a packet of %d bytes: %v", len(in.GetPayload()), err)
		}
		n := binary.BigEndian.Uint64(u.Payload)
		if !bytes.Equal(u.Payload, sent[n]) || len(in.GetMetadata()) != 3 {
			t.Fatalf("packet %d has changed: %d bytes of %d", n, len(u.Payload), len(sent[n]))
		}
		arrived[n]++
	}
	for range 3 {
		send(40)
		for len(arrived) < len(sent)-20 { // the others are under way
			arrive(r.next())
		}
		k.kill()
		for m := range r.in { // what had left before
			arrive(m)
		}
		send(40) // nobody is there
		info := r.info
		r = k.run()
		r.info = info
		for len(arrived) < len(sent) {
			arrive(r.next())
		}
	}
	k.kill()
	for m := range r.in {
		arrive(m)
	}
	// What was kept before there was a ring can be taken over.
	_, pins, _ := keepDirs(k.name)
	rings, err := filepath.Glob(filepath.Join(pins, "*", "held"))
	if err != nil || len(rings) != 1 || os.Remove(rings[0]) != nil {
		t.Fatalf("the rings are %v, %v", rings, err)
	}
	k.run()
	again := 0
	for _, n := range arrived {
		again += n - 1
	}
	t.Logf("%d packets, %d of them again", len(arrived), again)
}

// A process with mounts of its own, as ip netns exec gives it, keeps what it must: the
// pins are not in a BPF file system that ends with the process.
func TestKeep_MountsOfItsOwn(t *testing.T) {
	k := newKeptLab(t)
	k.apart = true
	r := k.run()
	r.load(sample.JSON, sample.Info)
	r.tell(1, k.a)
	r.tell(2, k.b)
	before := r.readAll()
	s := k.stream()
	s.more(t, 100)
	k.kill()
	s.more(t, 300) // nobody is there
	info := r.info
	r = k.run()
	r.info = info
	s.more(t, 300)
	if after := r.readAll(); len(after) != len(before) {
		t.Errorf("%d entries of %d", len(after), len(before))
	}
	close(s.stop)
	if err := <-s.done; err != nil {
		t.Error(err)
	}
}

// What another version has kept is refused, and goes on forwarding.
func TestKeep_OtherVersion(t *testing.T) {
	k := newKeptLab(t)
	k.executor = "auto"
	r := k.run()
	r.load(sample.JSON, sample.Info)
	r.tell(1, k.a)
	r.tell(2, k.b)
	if _, says := (&keptLab{t: t, name: k.name, a: k.a, b: k.b}).start(); !strings.Contains(says, ErrKept.Error()) {
		t.Errorf("a second switch of the name says %q", says)
	}
	k.kill()
	dir, pins, _ := keepDirs(k.name)
	refused := func(what string) {
		t.Helper()
		if _, says := k.start(); !strings.Contains(says, ErrOtherVersion.Error()) {
			t.Errorf("another version's %s: it says %q", what, says)
		}
		k.kill()
	}
	// Versions before had a map of counters for each table.
	maps, err := filepath.Glob(filepath.Join(pins, "*", "direct_counters_*"))
	if err != nil || len(maps) != 1 {
		t.Fatalf("the maps of counters are %v, %v", maps, err)
	}
	if err := os.Rename(maps[0], filepath.Join(filepath.Dir(maps[0]), "direct_counter_0")); err != nil {
		t.Fatal(err)
	}
	refused("maps")
	path := filepath.Join(dir, "journal")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	other := bytes.Replace(b, fmt.Appendf(nil, `"format":%d`, journalFormat), fmt.Appendf(nil, `"format":%d`, journalFormat+1), 1)
	if err := os.WriteFile(path, other, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("journal")
	s := k.stream()
	s.more(t, 100)
	close(s.stop)
	if err := <-s.done; err != nil {
		t.Error(err)
	}
}
