package p4rt

import (
	"errors"
	"fmt"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// errorSpace names whose error codes the server's are; there are none beside
// the canonical ones.
const errorSpace = "bifrost-v1model"

// errNoPipeline refuses what needs a program before there is one.
var errNoPipeline = status.Error(codes.FailedPrecondition, "no forwarding pipeline is configured")

// datapathError gives an executor's error its gRPC code.
func datapathError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := codes.Internal
	switch {
	case errors.Is(err, datapath.ErrNotFound):
		code = codes.NotFound
	case errors.Is(err, datapath.ErrExists):
		code = codes.AlreadyExists
	case errors.Is(err, datapath.ErrFull):
		code = codes.ResourceExhausted
	case errors.Is(err, datapath.ErrUnsupported):
		code = codes.Unimplemented
	}
	return status.Error(code, err.Error())
}

// batchError builds the status of a batch (sections "Error Reporting" and
// "Batch Processing"): OK if all went well, else UNKNOWN with one p4.v1.Error
// per element, in order.
func batchError(what string, errs []error) error {
	failed := 0
	details := make([]*anypb.Any, len(errs))
	for i, err := range errs {
		e := &p4v1.Error{}
		if err != nil {
			failed++
			st := status.Convert(err)
			e.CanonicalCode, e.Message, e.Space = int32(st.Code()), st.Message(), errorSpace
		}
		packed, perr := anypb.New(e)
		if perr != nil {
			return status.Error(codes.Internal, perr.Error())
		}
		details[i] = packed
	}
	if failed == 0 {
		return nil
	}
	return status.ErrorProto(&spb.Status{
		Code:    int32(codes.Unknown),
		Message: fmt.Sprintf("%d of %d %s failed", failed, len(errs), what),
		Details: details,
	})
}
