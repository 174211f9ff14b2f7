package control

// MaxPolicies bounds the explicit policies of a rack; a daemon takes no more.
const MaxPolicies = 1024

// MethodPolicy is the policy of a method, as rpc/rpcpacket.Policy writes it, or with no
// method that of all methods of the service for which there is no other entry.
type MethodPolicy struct {
	Service string `json:"service"`
	Method  string `json:"method,omitempty"`
	Policy  string `json:"policy"`
}

// PolicyList is the explicit policies. A daemon asks for them without a body.
type PolicyList struct {
	Version  uint64         `json:"version"`
	Policies []MethodPolicy `json:"policies"`
}
