#!/usr/bin/env bash
# Apache Thrift's own cross-test, by hand: its Go client and handler, unchanged, over
# Bifröst, with both policies, at three MTUs, in both protocols. They are taken from a
# checkout of Apache Thrift (or its bare git directory) and are never committed:
#
#   git clone https://github.com/apache/thrift /tmp/thrift
#   scripts/apache-crosstest.sh /tmp/thrift
#
# It needs a thrift compiler on PATH, takes the sources of that compiler's version (HEAD
# if the checkout has no such tag), and takes about half a minute.
set -eu
cd "$(dirname "$0")/.."
from=${1:?usage: scripts/apache-crosstest.sh CHECKOUT-OF-APACHE-THRIFT}
room=rpc/internal/crosstest/apache # within the module, for its internal packages
[ ! -e "$room" ] || { echo "apache-crosstest: $room exists: remove it"; exit 1; }
trap 'rm -rf "$room"' EXIT
mkdir -p "$room"
version=v$(thrift --version | awk '{print $3}')
git -C "$from" rev-parse -q --verify "$version^{commit}" >/dev/null || version=HEAD
echo "apache-crosstest: sources of Apache Thrift $version, $(git -C "$from" log -1 --format='%h of %as' "$version")"
get() { git -C "$from" show "$version:$1"; }
here=$(GOWORK=off go list -m)/$room
# What Go's compiler cannot express their Makefile leaves out, too.
get test/ThriftTest.thrift | grep -v 'list.*map.*list.*map' | grep -v 'set<Insanity>' >"$room/ThriftTest.thrift"
thrift -nowarn --gen go:skip_remote,package_prefix="$here/gen-go/" -o "$room" "$room/ThriftTest.thrift"
# Their packages become one; what starts servers and clients over TCP goes.
take() { get "$1" | sed -e 's/^package .*/package apache/' -e "s,github.com/apache/thrift/test/go/src/gen/thrifttest,$here/gen-go/thrifttest," "${@:2}"; }
take test/go/src/common/printing_handler.go >"$room/handler.go"
take test/go/src/bin/testclient/main.go -e '/test\/go\/src\/common"/d; /^	"flag"$/d; /flag\./d; /^func main/,/^}/d; /^	"fmt"$/d' >"$room/client.go"
cat >"$room/apache_test.go" <<EOF
package apache

import (
	"fmt"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
	"$here/gen-go/thrifttest"
)

func TestApache(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, mtu := range []int{1500, 9000, 65535} {
		ctx := t.Context()
		rack, err := simrack.Start(ctx, simrack.Config{MTU: mtu})
		must(err)
		server, err := rack.Join(ctx, "s1", "server")
		must(err)
		must(server.Export(ctx, "ThriftTest", thrifttest.NewThriftTestProcessor(PrintingHandler)))
		caller, err := rack.Join(ctx, "c1", "client")
		must(err)
		for _, policy := range []rpc.Policy{rpc.PolicyNone, rpc.PolicyRecover} {
			for _, protocol := range []rpc.Protocol{rpc.Binary, rpc.Compact} {
				t.Run(fmt.Sprint("mtu=", mtu, "/", policy, "/protocol=", protocol), func(*testing.T) {
					client := caller.Client("ThriftTest", rpc.WithPolicy(policy), rpc.WithProtocol(protocol))
					callEverything(thrifttest.NewThriftTestClient(client)) // a failure ends the process
				})
			}
		}
		must(caller.Close(ctx))
		must(server.Close(ctx))
		must(rack.Close())
	}
}
EOF
go test -count=1 -vet=off -v "./$room" | grep -v '^test[A-Z]'
