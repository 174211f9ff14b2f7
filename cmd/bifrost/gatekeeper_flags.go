package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/pairing"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// gatekeeperOptions are the flags of `bifrost gatekeeper`.
type gatekeeperOptions struct {
	address   string
	deviceID  uint64
	election  string
	dsmPrefix uint8
	mtu       int
	heartbeat time.Duration
	logging   logOptions
	log       string
	logSync   bool
	ports     portFlags
	open      bool
	share     bool
	tcp       []string
	rates     gatekeeper.Rates
	machines  []string
	fillRate  uint64
	ledgers   ledgerFlag

	ca, cert, key string
	insecure      bool
	otlp          string
	admin         adminOptions
}

func (o *gatekeeperOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.address, "switch", defaultSwitch, "the switch's P4Runtime `ADDRESS`: unix:PATH, or HOST:PORT with TLS")
	f.BoolVar(&o.insecure, "insecure", false, "connect to HOST:PORT without TLS, although anybody on the way could control the switch")
	f.Uint64Var(&o.deviceID, "device-id", 1, "the switch's P4Runtime device id")
	f.StringVar(&o.election, "election-id", "", "P4Runtime election id, LOW or HIGH:LOW; the highest is in charge (default: the present time)")
	f.Uint8Var(&o.dsmPrefix, "dsm-prefix", rackaddr.DefaultDSMPrefix, "byte 4 of every global pointer, 1 to 255")
	f.IntVar(&o.mtu, "mtu", rackaddr.DefaultMTU, "the rack's largest IPv6 packet in bytes")
	f.DurationVar(&o.heartbeat, "heartbeat", defaultHeartbeat, "how often blades report; one that is silent for three times as long has failed")
	f.VarP(&o.ports, "port", "p", "bind port PORT of the switch to a blade: nobody else registers there (repeatable)")
	f.BoolVar(&o.open, "open", false, "admit any blade at a port that is not bound; without it only bound ports have blades")
	f.BoolVar(&o.share, "share-exports", false, "let programs that nobody has deployed export a service together; without it a service belongs to the one that exports it first")
	f.Uint64Var(&o.fillRate, "fill-rate", 64<<20, "`BYTES` a second that a memory blade sends at most to one that becomes the second copy of its machine")
	o.ledgers = ledgerFlag(gatekeeper.LedgersTruth)
	f.Var(&o.ledgers, "ledgers", "what exactly-once calls are recovered from: truth: calls without pointers to services without state go straight to their callees, and are "+
		"recovered from these nodes' ledgers in the rack's memory; off: each is held, and recovered from the Gatekeeper's log. All of a rack's life it must be the same")
	f.StringArrayVar(&o.machines, "machine", nil, "`BLADES` of a memory machine: m1+m2 for two of which each holds a copy, so that either may die, "+
		"or m3; once for each machine (default: m1 with m2, m3 with m4, and so on by the names' numbers; a blade that asks for an ID of its own is alone)")
	f.StringSliceVar(&o.tcp, "tcp", nil, "let TCP pass between these `BLADES`; * stands for all (default: none)")
	o.rates = gatekeeper.DefaultRates
	f.Var(rateFlag{&o.rates}, "rate", "how many packets of a class one port of the switch may have the Gatekeeper look at in a second, and at once (repeatable)")
	f.StringVar(&o.log, "log", "", "`DIRECTORY` of the log from which a Gatekeeper that is started again goes on (default: none)")
	f.BoolVar(&o.logSync, "log-sync", false, "what is logged survives the loss of power, too: wait for the disk")
	o.logging.register(f, "")
	f.StringVar(&o.ca, "tls-ca", "", "use TLS; PEM `FILE` with the CA that the switch's certificate comes from")
	f.StringVar(&o.cert, "tls-cert", "", "PEM `FILE` with a certificate for the switch to check")
	f.StringVar(&o.key, "tls-key", "", "PEM `FILE` with its key")
	f.StringVar(&o.otlp, "otlp-endpoint", "", "export every call as an OpenTelemetry span by OTLP over HTTP to this `URL`, such as http://localhost:4318 "+
		"(default: $OTEL_EXPORTER_OTLP_ENDPOINT, else none; other OTEL_ variables count, too)")
	o.admin.register(f)
}

// memoryMachines reads --machine.
func (o *gatekeeperOptions) memoryMachines() (machines [][]string, err error) {
	for _, text := range o.machines {
		blades, err := pairing.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("--machine %s: %w", text, err)
		}
		machines = append(machines, blades)
	}
	if err := pairing.Check(machines); err != nil {
		return nil, fmt.Errorf("--machine: %w", err)
	}
	return machines, nil
}

// credentials are plain text without --tls-ca, which a Unix socket needs not.
func (o *gatekeeperOptions) credentials() (credentials.TransportCredentials, error) {
	if o.ca == "" {
		if o.cert != "" || o.key != "" {
			return nil, errors.New("a certificate is given but TLS is off: add --tls-ca")
		}
		if !strings.HasPrefix(o.address, "unix:") && !o.insecure {
			return nil, fmt.Errorf("--switch %s: anybody on the way could control the switch: add --tls-ca, --tls-cert and --tls-key, or accept it with --insecure", o.address)
		}
		return insecure.NewCredentials(), nil
	}
	pem, err := os.ReadFile(o.ca)
	if err != nil {
		return nil, fmt.Errorf("--tls-ca: %w", err)
	}
	cfg := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	if !cfg.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--tls-ca: %s holds no certificate", o.ca)
	}
	if (o.cert == "") != (o.key == "") {
		return nil, errors.New("--tls-cert and --tls-key go together")
	}
	if o.cert != "" {
		pair, err := tls.LoadX509KeyPair(o.cert, o.key)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert, --tls-key: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(cfg), nil
}

// parseElection reads LOW or HIGH:LOW; "" is the zero id.
func parseElection(s string) (e control.Election, err error) {
	if s == "" {
		return e, nil
	}
	high, low, both := strings.Cut(s, ":")
	if !both {
		high, low = "0", s
	}
	if e.High, err = strconv.ParseUint(high, 10, 64); err != nil {
		return e, err
	}
	if e.Low, err = strconv.ParseUint(low, 10, 64); err != nil {
		return e, err
	}
	if e == (control.Election{}) {
		return e, errors.New("election id 0 is reserved by P4Runtime")
	}
	return e, nil
}

// target makes a gRPC target of HOST:PORT or unix:PATH.
func target(address string) string {
	if strings.HasPrefix(address, "unix:") {
		return address
	}
	return "dns:///" + address
}

// portFlags are the values of --port.
type portFlags map[uint16]gatekeeper.Port

// String implements pflag.Value.
func (p *portFlags) String() string {
	var s []string
	for _, num := range slices.Sorted(maps.Keys(*p)) {
		s = append(s, fmt.Sprintf("%d=%s", num, (*p)[num]))
	}
	return strings.Join(s, ",")
}

// Type implements pflag.Value.
func (*portFlags) Type() string { return "PORT=NAME:KIND[:MACHINE[:CAPACITY]]" }

// Set implements pflag.Value.
func (p *portFlags) Set(s string) error {
	num, blade, ok := strings.Cut(s, "=")
	n, err := strconv.ParseUint(num, 10, 16)
	if !ok || err != nil {
		return fmt.Errorf("%q: write PORT=NAME:KIND, such as 1=c1:compute", s)
	}
	bound, err := gatekeeper.ParsePort(blade)
	if err != nil {
		return err
	}
	if _, twice := (*p)[uint16(n)]; twice {
		return fmt.Errorf("port %d is bound twice", n)
	}
	if *p == nil {
		*p = portFlags{}
	}
	(*p)[uint16(n)] = bound
	return nil
}

// rateFlag is the value of --rate.
type rateFlag struct{ rates *gatekeeper.Rates }

// class returns a class's rate, nil if there is none of that name.
func (r rateFlag) class(name string) *gatekeeper.Rate {
	switch name {
	case "control":
		return &r.rates.Control
	case "calls":
		return &r.rates.Calls
	case "memory":
		return &r.rates.Memory
	case "digests":
		return &r.rates.Digests
	}
	return nil
}

// String implements pflag.Value.
func (r rateFlag) String() string {
	if r.rates == nil {
		return ""
	}
	var s []string
	for _, name := range []string{"control", "calls", "memory", "digests"} {
		s = append(s, fmt.Sprintf("%s=%d/%d", name, r.class(name).PerSecond, r.class(name).Burst))
	}
	return strings.Join(s, " ")
}

// Type implements pflag.Value.
func (rateFlag) Type() string { return "CLASS=PER_SECOND/BURST" }

// Set implements pflag.Value.
func (r rateFlag) Set(s string) error {
	name, value, _ := strings.Cut(s, "=")
	per, burst, ok := strings.Cut(value, "/")
	class := r.class(name)
	a, err := strconv.ParseInt(per, 10, 64)
	b, err2 := strconv.ParseInt(burst, 10, 64)
	if class == nil || !ok || err != nil || err2 != nil || a < 1 || b < 1 || a > maxRate || b > maxRate {
		return fmt.Errorf("%q: write CLASS=PER_SECOND/BURST, such as calls=10000/4000; the classes are control, calls, memory and digests", s)
	}
	*class = gatekeeper.Rate{PerSecond: a, Burst: b}
	return nil
}

// maxRate is the most that the meters of all switches count.
const maxRate = 1_000_000_000

// ledgerFlag is --ledgers.
type ledgerFlag gatekeeper.LedgerMode

var ledgerModes = map[string]gatekeeper.LedgerMode{"off": gatekeeper.LedgersOff, "truth": gatekeeper.LedgersTruth}

// String implements pflag.Value.
func (l *ledgerFlag) String() string {
	for name, mode := range ledgerModes {
		if mode == gatekeeper.LedgerMode(*l) {
			return name
		}
	}
	return "off"
}

// Type implements pflag.Value.
func (*ledgerFlag) Type() string { return "MODE" }

// Set implements pflag.Value.
func (l *ledgerFlag) Set(s string) error {
	mode, known := ledgerModes[s]
	if !known {
		return fmt.Errorf("%q is no mode: off or truth", s)
	}
	*l = ledgerFlag(mode)
	return nil
}
