package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/softswitch"
	"github.com/spf13/pflag"
)

// switchOptions are the flags of `bifrost switch`.
type switchOptions struct {
	interfaces interfaceFlags
	deviceID   uint64
	cpuPort    uint16
	program    string
	p4info     string
	noP4       bool
	pcap       string
	datapath   string
	metrics    string
	keep       string
	discard    bool

	streamWrites         bool
	grpcAddr             string
	socketMode           string
	insecure             bool
	ssl, clientAuth      bool
	cacert, cert, keyPEM string

	logging              logOptions
	version, jsonVersion bool
}

func (o *switchOptions) register(f *pflag.FlagSet) {
	f.VarP(&o.interfaces, "interface", "i", "attach interface NAME as port PORT (repeatable)")
	f.Uint64Var(&o.deviceID, "device-id", 1, "P4Runtime device id")
	f.Uint16Var(&o.cpuPort, "cpu-port", 0, "port for PacketIn and PacketOut, 1 to 510; without it there are none")
	f.StringVar(&o.p4info, "p4info", "", "P4Info of the program on the command line (text; binary if named .bin or .pb)")
	f.BoolVar(&o.noP4, "no-p4", false, "start without a program (the default if none is named)")
	f.StringVar(&o.pcap, "pcap", "", "capture each port's packets in `DIR`/NAME_in.pcap and NAME_out.pcap")
	f.Lookup("pcap").NoOptDefVal = "."
	f.StringVar(&o.datapath, "datapath", "auto", "what moves packets: ebpf (in the kernel), go (portable), or auto (ebpf if it can run the program)")

	f.StringVar(&o.keep, "keep", "", "keep program and entries under `NAME` while no switch runs: in the kernel, packets are forwarded on when this process is killed, and the next one with the NAME takes over")
	f.BoolVar(&o.discard, "discard", false, "remove what a former switch has kept under --keep's NAME, and begin anew")

	f.StringVar(&o.metrics, "metrics-addr", "", "serve counters of ports and tables, and what the process uses, to Prometheus at `ADDRESS`, path /metrics: HOST:PORT or unix:PATH")

	f.StringVar(&o.grpcAddr, "grpc-server-addr", defaultSwitch, "serve P4Runtime at `ADDRESS`: unix:PATH, or HOST:PORT with TLS and client certificates")
	f.StringVar(&o.socketMode, "grpc-server-mode", "0600", "who may connect to the Unix socket, as `MODE` of the file in octal: 0600 is this user, 0660 the group, too")
	f.BoolVar(&o.insecure, "grpc-server-insecure", false, "serve HOST:PORT although whoever reaches it controls the switch: without TLS, or without client certificates")
	f.BoolVar(&o.streamWrites, "stream-writes", true, "take Writes on the stream too, an extension of P4Runtime that saves the Gatekeeper time")
	f.BoolVar(&o.ssl, "grpc-server-ssl", false, "serve P4Runtime with TLS")
	f.StringVar(&o.cert, "grpc-server-cert", "", "PEM `FILE` with the server's certificate")
	f.StringVar(&o.keyPEM, "grpc-server-key", "", "PEM `FILE` with the server's key")
	f.StringVar(&o.cacert, "grpc-server-cacert", "", "PEM `FILE` with the CA that controllers' certificates come from")
	f.BoolVar(&o.clientAuth, "grpc-server-with-client-auth", false, "require a certificate from controllers")

	o.logging.trace = true
	o.logging.register(f, "L")
	f.Bool("log-console", false, "log to standard error (the default)")
	o.registerBMv2(f)
}

var loaders = map[string]softswitch.Loader{
	"auto": fitting(softswitch.LoadAuto), "ebpf": fitting(softswitch.LoadEBPF), "go": fitting(softswitch.LoadGo),
}

// fitting gives Go's scheduler what suits the executor. In the kernel's, packets
// need no processor of Go's. With the Go executor flooded ports keep one each, and
// what controllers ask for would wait some 10 ms for one at every step: with more
// processors than CPUs the kernel shares these out.
func fitting(load softswitch.Loader) softswitch.Loader {
	return func(deviceConfig []byte, env softswitch.Env) (softswitch.Executor, error) {
		x, err := load(deviceConfig, env)
		_, kernel := x.(interface {
			AttachPort(num datapath.Port, name string, wait bool) error
		})
		switch {
		case err != nil:
		case kernel:
			processors(1)
		default:
			processors(3 * runtime.NumCPU())
		}
		return x, err
	}
}

// config turns the flags into a switch's configuration.
func (o *switchOptions) config(log *slog.Logger) (softswitch.Config, error) {
	cfg := softswitch.Config{
		DeviceID: o.deviceID, CPUPort: datapath.Port(o.cpuPort),
		CaptureDir: o.pcap, Keep: o.keep, NoStreamWrites: !o.streamWrites, Log: log,
	}
	var ok bool
	if cfg.Load, ok = loaders[o.datapath]; !ok {
		return cfg, fmt.Errorf("--datapath %s: choose auto, ebpf or go", o.datapath)
	}
	if o.discard {
		if o.keep == "" {
			return cfg, errors.New("--discard removes what --keep NAME has kept: add --keep NAME")
		}
		if err := softswitch.Discard(o.keep); err != nil {
			return cfg, err
		}
	}
	if o.pcap != "" {
		if st, err := os.Stat(o.pcap); err != nil || !st.IsDir() {
			return cfg, fmt.Errorf("--pcap %s is no directory: create it first", o.pcap)
		}
	}
	var err error
	cfg.TLS, err = o.tls()
	return cfg, err
}

// private tells whether only those who are meant to can reach P4Runtime.
func (o *switchOptions) private() bool {
	return strings.HasPrefix(o.grpcAddr, "unix:") || o.ssl && o.clientAuth
}

// mode is the mode of the Unix socket. A TCP address is refused if whoever reaches it
// would control the switch.
func (o *switchOptions) mode() (os.FileMode, error) {
	if !o.private() && !o.insecure {
		return 0, fmt.Errorf("--grpc-server-addr %s: whoever reaches it would control the switch: use unix:PATH, or add --grpc-server-ssl and --grpc-server-with-client-auth, or accept it with --grpc-server-insecure", o.grpcAddr)
	}
	mode, err := strconv.ParseUint(o.socketMode, 8, 32)
	if err != nil || mode&^0o777 != 0 {
		return 0, fmt.Errorf("--grpc-server-mode %s: write a mode in octal, such as 0600 or 0660", o.socketMode)
	}
	return os.FileMode(mode), nil
}

// tls is the TLS configuration; nil without --grpc-server-ssl.
func (o *switchOptions) tls() (*tls.Config, error) {
	if !o.ssl {
		if o.cert != "" || o.keyPEM != "" || o.cacert != "" || o.clientAuth {
			return nil, errors.New("certificates are given but TLS is off: add --grpc-server-ssl")
		}
		return nil, nil
	}
	if o.cert == "" || o.keyPEM == "" {
		return nil, errors.New("--grpc-server-ssl needs --grpc-server-cert and --grpc-server-key")
	}
	pair, err := tls.LoadX509KeyPair(o.cert, o.keyPEM)
	if err != nil {
		return nil, fmt.Errorf("server certificate: %w", err)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if o.cacert != "" {
		pem, err := os.ReadFile(o.cacert)
		if err != nil {
			return nil, fmt.Errorf("--grpc-server-cacert: %w", err)
		}
		cfg.ClientCAs = x509.NewCertPool()
		if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--grpc-server-cacert: %s holds no certificate", o.cacert)
		}
		cfg.ClientAuth = tls.VerifyClientCertIfGiven
	}
	if o.clientAuth {
		if o.cacert == "" {
			return nil, errors.New("--grpc-server-with-client-auth needs --grpc-server-cacert")
		}
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return cfg, nil
}

// interfaceFlags is the value of -i, PORT@NAME.
type interfaceFlags []softswitch.Interface

// String implements pflag.Value.
func (f *interfaceFlags) String() string {
	var s []string
	for _, i := range *f {
		s = append(s, fmt.Sprintf("%d@%s", i.Port, i.Name))
	}
	return strings.Join(s, ",")
}

// Type implements pflag.Value.
func (f *interfaceFlags) Type() string { return "PORT@NAME" }

// Set implements pflag.Value.
func (f *interfaceFlags) Set(s string) error {
	num, name, ok := strings.Cut(s, "@")
	n, err := strconv.ParseUint(num, 10, 9)
	if !ok || err != nil || name == "" || datapath.Port(n) >= softswitch.DropPort {
		return fmt.Errorf("%q is not PORT@NAME with a port from 0 to %d, such as 0@veth0", s, softswitch.DropPort-1)
	}
	for _, i := range *f {
		if i.Port == datapath.Port(n) || i.Name == name {
			return fmt.Errorf("%s: port %d or interface %s is given twice", s, n, name)
		}
	}
	*f = append(*f, softswitch.Interface{Port: datapath.Port(n), Name: name})
	return nil
}
