package switchcmd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// certified writes a self-signed certificate for 127.0.0.1, and its key.
func certified(t *testing.T, dir, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	der2, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	for path, b := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: der2}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// Each command that speaks to a switch does so by TLS with a certificate of its own; without one it is refused, and it does not speak plain text
// over a network unless it is told to.
func TestSwitchClients_TLS(t *testing.T) {
	dir := t.TempDir()
	json, info := program(t)
	serverCert, serverKey := certified(t, dir, "server")
	clientCert, clientKey := certified(t, dir, "client")
	addr := reserved(t)
	runSwitch(t, "--datapath", "go", "--log-level", "off", "--p4info", info, json, "--grpc-server-addr", addr, "--grpc-server-ssl", "--grpc-server-cert", serverCert,
		"--grpc-server-key", serverKey, "--grpc-server-cacert", clientCert, "--grpc-server-with-client-auth")
	run := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		return execute(ctx, append(args, "--grpc-addr", addr)...)
	}
	for _, command := range [][]string{
		{"entry", "next_hop", "hop=7", "forward", "port=1", "dst=02:00:00:00:00:01", "src=02:00:00:00:00:02"}, {"entries", "next_hop"}, {"trace", "--for", "10ms"},
	} {
		with := func(more ...string) []string { return append(append([]string{}, command...), more...) }
		if out, err := run(with("--tls-ca", serverCert, "--tls-cert", clientCert, "--tls-key", clientKey)...); err != nil {
			t.Errorf("%s: %v %s", command[0], err, out)
		} else if command[0] == "entries" && !strings.Contains(out, "hop=7") {
			t.Errorf("entries: %q", out)
		}
		if _, err := run(with("--tls-ca", serverCert)...); err == nil {
			t.Errorf("%s without a certificate: no error", command[0])
		}
		if _, err := run(command...); err == nil || !strings.Contains(err.Error(), "--insecure") {
			t.Errorf("%s without TLS: %v", command[0], err)
		}
	}
}
