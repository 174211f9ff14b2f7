package host

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/host/hostwire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/gen"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/stub"
)

// service is a service of the child: the processor that the node serves.
type service struct {
	child   *Child
	name    string
	said    *hostwire.ServiceBody
	state   *state // nil if it has none
	methods map[string]*method
}

// method is one in one of its forms: by value, or by reference.
type method struct {
	name     string           // as the child knows it
	declared map[int16]string // types of the exceptions that the IDL declares, by their fields
	refs     map[int16]string // names of the arguments that come by reference, by their numbers
	returns  bool             // the result goes by reference
	policy   string           // that the IDL says; "" if it says none
}

// newService makes a service of what the child says, or tells why it cannot be served.
func newService(c *Child, said *hostwire.ServiceBody) (*service, error) {
	s := &service{child: c, name: said.Name, said: said, methods: map[string]*method{}}
	if said.State {
		s.state = newState()
	}
	known, err := describe(said)
	if err != nil {
		return nil, err
	}
	for _, name := range said.Methods {
		m := &method{name: name}
		s.methods[name] = m
		i := slices.IndexFunc(known, func(k *gen.Method) bool { return k.Name == name })
		if i < 0 {
			continue
		}
		if err := m.learn(known[i]); err != nil {
			return nil, fmt.Errorf("service %s, method %s: %w", said.Name, name, err)
		}
		if by := byReference(m, known[i]); by != nil {
			s.methods[name+rpcpacket.RefSuffix] = by
		}
	}
	return s, nil
}

// describe finds the service in its IDL text: the one of its name, or else the only one that has all methods.
func describe(said *hostwire.ServiceBody) ([]*gen.Method, error) {
	if said.IDL == "" {
		return nil, nil
	}
	all, err := gen.Describe(said.IDL)
	if err != nil {
		return nil, fmt.Errorf("service %s: its IDL: %w", said.Name, err)
	}
	var found []*gen.Service
	for _, s := range all {
		has := func(name string) bool {
			return slices.ContainsFunc(s.Methods, func(m *gen.Method) bool { return m.Name == name })
		}
		if s.Name == said.Name {
			found = []*gen.Service{s}
			break
		}
		if !slices.ContainsFunc(said.Methods, func(name string) bool { return !has(name) }) {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("service %s: its IDL defines no service of this name, and %d that have its methods: want one", said.Name, len(found))
	}
	return found[0].Methods, nil
}

// learn takes what the IDL says of a method.
func (m *method) learn(k *gen.Method) error {
	if k.Problem != nil { // who calls it has generated code
		return nil //nolint:nilerr // it can be served
	}
	m.policy, m.declared = k.Policy, map[int16]string{}
	seen := map[*gen.Type]bool{}
	if points(k.Result, seen) || pointsIn(k.Arguments, seen) || pointsIn(k.Throws, seen) {
		return errors.New("it has global pointers, which a child of a host cannot use: mark values with (bifrost.ref), or serve the method as a node of its own")
	}
	for i := range k.Throws {
		m.declared[k.Throws[i].ID] = k.Throws[i].Type.Name
	}
	return nil
}

// points reports whether a type has global pointers in it.
func points(t *gen.Type, seen map[*gen.Type]bool) bool {
	if t == nil || seen[t] {
		return false
	}
	seen[t] = true
	return t.IsPointer() || points(t.Key, seen) || points(t.Elem, seen) || pointsIn(t.Fields, seen)
}

func pointsIn(all []gen.Field, seen map[*gen.Type]bool) bool {
	return slices.ContainsFunc(all, func(f gen.Field) bool { return points(f.Type, seen) })
}

// byReference is the form of a method by reference; nil if the IDL marks nothing, or what is no binary.
func byReference(m *method, k *gen.Method) *method {
	if k.Problem != nil || k.ResultByReference && k.Result.Kind != gen.Binary {
		return nil
	}
	by := *m
	by.refs, by.returns = map[int16]string{}, k.ResultByReference
	for i := range k.Arguments {
		switch a := &k.Arguments[i]; {
		case !a.ByReference:
		case a.Type.Kind == gen.Binary:
			by.refs[a.ID] = a.Name
		default:
			return nil
		}
	}
	if len(by.refs) == 0 && !by.returns {
		return nil
	}
	return &by
}

// options are those that the service is exported with.
func (s *service) options() []rpc.ExportOption {
	var opts []rpc.ExportOption
	if s.said.IDL != "" {
		opts = append(opts, rpc.WithIDL(s.said.IDL))
	}
	if s.state != nil {
		opts = append(opts, rpc.WithState(s.state))
	}
	if n := s.said.Workers; n > 0 {
		opts = append(opts, rpc.WithWorkers(n))
	}
	if n := s.said.Queue; n > 0 {
		opts = append(opts, rpc.WithQueue(n))
	}
	for _, name := range sorted(s.methods) {
		m := s.methods[name]
		said, ok := s.said.Policies[m.name]
		if !ok {
			if said, ok = s.said.Policies[""]; !ok {
				said = m.policy
			}
		}
		if p, ok := rpcpacket.ParsePolicy(said); ok {
			opts = append(opts, rpc.WithMethodPolicy(p, name))
		}
		if n, ok := s.said.MaxFailures[m.name]; ok {
			opts = append(opts, rpc.WithMaxFailures(n, name))
		}
	}
	if n, ok := s.said.MaxFailures[""]; ok {
		opts = append(opts, rpc.WithMaxFailures(n))
	}
	return opts
}

var _ thrift.TProcessor = (*service)(nil)

// listed stands for a method where the runtime lists those of a service. The service itself processes its calls.
type listed struct{ s *service }

// Process implements thrift.TProcessorFunction.
func (listed) Process(context.Context, int32, thrift.TProtocol, thrift.TProtocol) (bool, thrift.TException) {
	return false, thrift.NewTApplicationException(thrift.INTERNAL_ERROR, "the method of a host is called by its service")
}

// ProcessorMap implements thrift.TProcessor.
func (s *service) ProcessorMap() map[string]thrift.TProcessorFunction {
	all := map[string]thrift.TProcessorFunction{}
	for name := range s.methods {
		all[name] = listed{s}
	}
	return all
}

// AddToProcessorMap implements thrift.TProcessor. The child says which methods there are.
func (s *service) AddToProcessorMap(string, thrift.TProcessorFunction) {}

// Process implements thrift.TProcessor.
func (s *service) Process(ctx context.Context, in, out thrift.TProtocol) (bool, thrift.TException) {
	if err := s.process(ctx, in, out); err != nil {
		return false, thrift.WrapTException(err)
	}
	return true, nil
}

func (s *service) process(ctx context.Context, in, out thrift.TProtocol) error {
	name, kind, seq, err := in.ReadMessageBegin(ctx)
	if err != nil {
		return rpc.Errorf(rpc.BadRequest, "no Thrift message: %v", err)
	}
	m := s.methods[name]
	if m == nil {
		return rpc.Errorf(rpc.NoSuchMethod, "service %s has no method %q", s.name, name)
	}
	k := &call{child: s.child, state: s.state, service: s.name, method: m.name, oneway: kind == thrift.ONEWAY, frames: make(chan hostwire.Frame, 1)}
	var takes stub.Takes
	message, end, err := s.arguments(ctx, in, m, kind, &takes)
	defer end()
	if err != nil {
		return err
	}
	f := k.run(ctx, message)
	switch f.Kind {
	case hostwire.Broken:
		panic(brokenHandler(f.Body)) // the runtime takes back what the handler has done
	case hostwire.Fail:
		failed, err := hostwire.ParseFail(f.Body)
		if err == nil && (failed.Code == rpc.OK || failed.Code == rpc.Declared) {
			err = fmt.Errorf("call %d fails with the code %q, which is for answers", k.number, failed.Code)
		}
		if err != nil {
			return s.child.misbehaves(err)
		}
		return rpc.Errorf(failed.Code, "%s", failed.Data)
	case hostwire.Answer:
		if k.oneway || len(f.Body) == 0 {
			return nil
		}
		return s.answer(ctx, out, m, name, seq, takes, f.Body)
	default:
		return s.child.lost()
	}
}

// brokenHandler is what a handler of the child has ended with that has not come to an end of its own.
type brokenHandler []byte

// String is the child's word.
func (b brokenHandler) String() string { return string(b) }

// arguments makes the Thrift message that the child gets. What comes by reference is loaded, and ends with end. What the caller takes of an answer by reference is
// the host's to know.
func (s *service) arguments(ctx context.Context, in thrift.TProtocol, m *method, kind thrift.TMessageType, takes *stub.Takes) (message []byte, end func(), err error) {
	buffer := newMemory(s.child.config.MaxMessage)
	out := binaryOver(buffer)
	var ends []func()
	end = func() {
		for _, f := range ends {
			f()
		}
	}
	field := func(ctx context.Context, id int16, t thrift.TType) (bool, error) {
		if m.returns && id == stub.TakesField && t == thrift.I64 {
			return true, takes.Read(ctx, in)
		}
		argument, marked := m.refs[id]
		if !marked || t != thrift.STRUCT {
			return false, nil
		}
		w := bifrost.NewReference()
		if err := w.Read(ctx, in); err != nil {
			return true, err
		}
		ref, err := stub.Lent(ctx, stub.Plain[[]byte](), argument, w, kind == thrift.ONEWAY)
		if err != nil {
			return true, err
		}
		ends = append(ends, func() { stub.End(ctx, ref) })
		if err := buffer.fits(int(min(w.Length, mostMessage))); err != nil {
			return true, err
		}
		value, err := ref.Load(ctx)
		if err != nil {
			return true, err
		}
		return true, errors.Join(out.WriteFieldBegin(ctx, "", thrift.STRING, id), out.WriteBinary(ctx, value), out.WriteFieldEnd(ctx))
	}
	err = out.WriteMessageBegin(ctx, m.name, kind, 0)
	if err == nil {
		err = copyStruct(ctx, in, out, maxDepth, field)
	}
	var coded *rpc.Error
	if err != nil && !errors.As(err, &coded) {
		err = rpc.Errorf(rpc.BadRequest, "arguments: %v", err)
	}
	return buffer.Bytes(), end, err
}

// answer writes the child's answer, to a caller that takes so many bytes of one by reference.
func (s *service) answer(ctx context.Context, out thrift.TProtocol, m *method, name string, seq int32, takes stub.Takes, b []byte) error {
	a, err := openMessage(ctx, b)
	switch {
	case err != nil:
		return s.child.misbehaves(fmt.Errorf("its answer of method %s is no Thrift message: %w", m.name, err))
	case a.name != m.name:
		return s.child.misbehaves(fmt.Errorf("it answers method %s with an answer of %.100q", m.name, a.name))
	case a.kind == thrift.EXCEPTION:
		app := thrift.NewTApplicationException(thrift.UNKNOWN_APPLICATION_EXCEPTION, "")
		if err := app.Read(ctx, a.TProtocol); err != nil {
			return s.child.misbehaves(fmt.Errorf("its exception of method %s: %w", m.name, err))
		}
		if err := errors.Join(out.WriteMessageBegin(ctx, name, thrift.EXCEPTION, seq), app.Write(ctx, out), out.WriteMessageEnd(ctx)); err != nil {
			return err
		}
		return app
	case a.kind != thrift.REPLY:
		return s.child.misbehaves(fmt.Errorf("its answer of method %s is a Thrift message of type %d: want %d or %d", m.name, a.kind, thrift.REPLY, thrift.EXCEPTION))
	}
	var thrown error
	field := func(ctx context.Context, id int16, t thrift.TType) (bool, error) {
		if id != 0 {
			thrown = &declared{name: m.declared[id]}
		}
		if id != 0 || !m.returns || t != thrift.STRING {
			return false, nil
		}
		value, err := a.ReadBinary(ctx)
		if err != nil {
			return true, err
		}
		w, err := stub.Return(ctx, stub.Cheapest, takes, rpc.RefOf(value))
		if err != nil {
			return true, unsent{err}
		}
		return true, stub.WriteRef("success", id, w)(ctx, out)
	}
	if err = out.WriteMessageBegin(ctx, name, thrift.REPLY, seq); err == nil {
		err = a.copyTo(ctx, out, field)
	}
	var failed unsent
	switch {
	case errors.As(err, &failed):
		return failed.error
	case err != nil:
		return s.child.misbehaves(fmt.Errorf("its answer of method %s: %w", m.name, err))
	}
	if err := out.WriteMessageEnd(ctx); err != nil {
		return err
	}
	return thrown
}

// unsent is why a result does not go by reference. It is no fault of the child's.
type unsent struct{ error }

// declared is an exception that the IDL declares, in an answer that has been written.
type declared struct{ name string }

var _ thrift.TException = (*declared)(nil)

// Error implements error.
func (d *declared) Error() string { return "the exception " + d.DeclaredName() }

// DeclaredName is the name of its type, for the timeline of the call.
func (d *declared) DeclaredName() string {
	if d.name == "" {
		return "exception"
	}
	return d.name
}

// TExceptionType implements thrift.TException.
func (*declared) TExceptionType() thrift.TExceptionType { return thrift.TExceptionTypeCompiled }
