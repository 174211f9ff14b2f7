package rack

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/join/unixjoin"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/netio/linux"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rack/config"
	"github.com/bifrost-rack/bifrost/rack/internal/kernel"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// The users of two programs on one blade.
const (
	honest  = 60001
	hostile = 60002
)

// TestHostile_Neighbour is rows 8 and 20 of docs/security.md, on a real rack with two real users:
// a program neither frees nor reads the memory of another user's node on its blade, nor
// does it speak for the blade's daemon, also not by the sockets of a node of its own. It cannot take the ports of nodes, and keeps
// nobody from joining.
func TestHostile_Neighbour(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binaries")
	}
	h, name := testRack(t)
	h.Bifrost = build(t)
	if err := os.Chmod(filepath.Dir(h.Bifrost), 0o755); err != nil { // for the other users
		t.Fatal(err)
	}
	c := config.Thesis()
	c.Name, c.Programs = name, nil
	c.Blades = []config.Blade{c.Blades[0], c.Blades[3]}
	if err := h.Up(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	admin, err := client.New(client.Config{Address: "unix:" + h.AdminSocket(name)})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	blade := plan.Namespace(name, "c1")
	occupies(t, blade)
	neighbour, pointer := holds(t, h, name)

	// nodes is what the Gatekeeper knows of nodes and regions.
	state := func() (nodes []api.Node, regions int) {
		t.Helper()
		nodes, err := admin.Nodes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range admin.Regions(t.Context(), client.RegionFilter{}) {
			if err != nil {
				t.Fatal(err)
			}
			regions++
		}
		return nodes, regions
	}
	nodes, before := state()
	if len(nodes) != 1 || nodes[0].Address != neighbour || before == 0 {
		t.Fatalf("nodes %+v, %d regions", nodes, before)
	}
	sendByNode, left := joins(t, blade)
	local := netip.AddrPortFrom // shorter
	request := dsmpacket.Header{Kind: dsmpacket.Request, Request: 1000, Incarnation: 1, Length: 1}
	leave := controlPacket(t, control.KindLeave, control.Leave{Node: neighbour, Incarnation: nodes[0].Incarnation, Reason: "forged", Crashed: true})
	const free = 40000 // the ports of nodes are for their sockets alone
	for _, attack := range []struct {
		what     string
		from, to netip.AddrPort
		content  []byte
	}{
		{"frees a neighbour's region", local(neighbour, rackaddr.PortDSM), local(pointer.With(dsmpacket.OpFree).Addr(), rackaddr.PortDSM), request.Append(nil)},
		{"writes to it", local(neighbour, rackaddr.PortDSM), local(pointer.With(dsmpacket.OpWrite).Addr(), rackaddr.PortDSM), append(request.Append(nil), 0xff)},
		{"reads it", local(neighbour, rackaddr.PortDSM), local(pointer.With(dsmpacket.OpRead).Addr(), rackaddr.PortDSM), request.Append(nil)},
		{"speaks for the daemon", local(rackaddr.Blade(1), rackaddr.PortControl), local(rackaddr.Gatekeeper, rackaddr.PortControl), leave},
		{"controls from the neighbour's address", local(neighbour, rackaddr.PortControl), local(rackaddr.Gatekeeper, rackaddr.PortControl), leave},
		{"speaks for the Gatekeeper", local(rackaddr.Gatekeeper, rackaddr.PortControl), local(rackaddr.Blade(1), rackaddr.PortControl), leave},
	} {
		if err := sendByNode(attack.from, attack.to, attack.content); !errors.Is(err, unix.EPERM) {
			t.Errorf("a node of another user %s: %v", attack.what, err)
		}
		if attack.from.Port() == rackaddr.PortDSM {
			attack.from = local(attack.from.Addr(), free)
		}
		if err := sendAs(blade, hostile, attack.from, attack.to, attack.content); !errors.Is(err, unix.EPERM) {
			t.Errorf("a program of another user %s: %v", attack.what, err)
		}
	}
	own, err := left()
	if err != nil {
		t.Fatal(err)
	}
	if err := sendByNode(local(own, rackaddr.PortDSM), local(pointer.With(dsmpacket.OpRead).Addr(), rackaddr.PortDSM), request.Append(nil)); err == nil {
		t.Error("a node that has left sends from its address")
	}
	// What has passed has done its work when a program of the blade has been welcomed.
	r := realRack{t, h, name}
	if out, err := r.run(patience, "arrays", "peek", pointer.String()); err == nil || !strings.Contains(out, "permission denied") {
		t.Errorf("a stranger's read: %v: %s", err, out)
	}
	if after, n := state(); len(after) != 1 || after[0].Address != neighbour || n != before {
		t.Errorf("nodes %+v, %d regions; before: %+v, %d", after, n, nodes, before)
	}
}

// controlPacket is a request to the Gatekeeper as it stands in a datagram.
func controlPacket(t *testing.T, kind control.Kind, body any) []byte {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	p := control.NewPeer(control.PeerConfig{Boot: 1})
	if _, err := p.Ask(time.Now(), kind, b); err != nil {
		t.Fatal(err)
	}
	return p.Ready().Send[0]
}

// holds runs a program of the honest user on c1 that holds a region until the test ends.
func holds(t *testing.T, h *Host, name string) (node netip.Addr, p dsmpacket.Pointer) {
	t.Helper()
	program, err := h.Locate("arrays")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "hold")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: honest, Gid: honest}}
	out, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	if err := h.Start(name, "c1", cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); w.Close() })
	defer time.AfterFunc(patience, func() { w.Close() }).Stop()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("arrays hold: %q, %v", line, err)
	}
	go io.Copy(io.Discard, out) // ends with w
	if p, err = dsmpacket.ParsePointer(strings.TrimSpace(line)); err != nil {
		t.Fatalf("arrays hold: %v", err)
	}
	return rackaddr.Node(1), p
}

// occupies tries to take ports of nodes as an unprivileged user.
func occupies(t *testing.T, namespace string) {
	t.Helper()
	ns, err := kernel.OpenNamespace(namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.DoAs(hostile, func() (all error) {
		for _, port := range rackaddr.NodePorts {
			for _, a := range []netip.Addr{netip.IPv6Unspecified(), rackaddr.Node(1), rackaddr.Node(2)} {
				at := netip.AddrPortFrom(a, port)
				c, err := linux.Listen(at, rackaddr.DefaultMTU)
				if err == nil {
					t.Cleanup(func() { c.Close() }) // it keeps what it has
				}
				if !errors.Is(err, unix.EADDRINUSE) {
					all = errors.Join(all, fmt.Errorf("a program of another user has %s: %w", at, err))
				}
			}
		}
		return all
	}); err != nil {
		t.Error(err)
	}
}

// joins makes a program of the hostile user a node. It sends by the node's sockets, from any address, also when it has left.
func joins(t *testing.T, namespace string) (send func(from, to netip.AddrPort, content []byte) error, leave func() (netip.Addr, error)) {
	t.Helper()
	ns, err := kernel.OpenNamespace(namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var s join.Session
	if err := ns.DoAs(hostile, func() (err error) {
		s, err = unixjoin.Joiner{}.Join(ctx, "hostile")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	sockets := map[uint16]netio.Conn{}
	for _, port := range rackaddr.NodePorts {
		c, err := s.Stack().ListenUDP(netip.AddrPortFrom(s.Node().Address, port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		sockets[port] = c
	}
	return func(from, to netip.AddrPort, content []byte) error {
		c := sockets[from.Port()]
		if c == nil {
			c = sockets[rackaddr.PortRPC]
		}
		_, err := c.WriteBatch([]netio.Message{{Buf: content, Remote: to, Local: from.Addr()}})
		return err
	}, func() (netip.Addr, error) { return s.Node().Address, s.Close(t.Context()) }
}

// sendAs sends a datagram as an unprivileged user in a namespace, from any address that
// the kernel allows.
func sendAs(namespace string, uid uint32, from, to netip.AddrPort, content []byte) error {
	ns, err := kernel.OpenNamespace(namespace)
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.DoAs(uid, func() error {
		c, err := linux.Listen(netip.AddrPortFrom(netip.IPv6Loopback(), from.Port()), rackaddr.DefaultMTU)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.WriteBatch([]netio.Message{{Buf: content, Remote: to, Local: from.Addr()}})
		return err
	})
}
