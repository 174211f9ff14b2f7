package control

// MaxPolicies bounds the explicit policies of a rack; a daemon takes no more.
const MaxPolicies = 1024

// MethodPolicy is the policy of a method, as rpc/packet.Policy writes it, or with no
// method that of all methods of the service for which there is no other entry.
type MethodPolicy struct {
	Service string `json:"service"`
	Method  string `json:"method,omitempty"`
	Policy  string `json:"policy"`
}

// Policies asks for explicit policies from a position on, as many as fit a packet.
type Policies struct {
	From int `json:"from"`
}

// PolicyList is a part of the explicit policies; Next is 0 at the end. If parts have
// different versions, the asker begins anew.
type PolicyList struct {
	Version  uint64         `json:"version"`
	Policies []MethodPolicy `json:"policies"`
	Next     int            `json:"next,omitempty"`
}

// size is about what an entry takes in JSON, in bytes.
func (p *MethodPolicy) size() int { return len(p.Service) + len(p.Method) + len(p.Policy) + 50 }

// PolicyPart is the part of a list from a position on that takes about limit bytes at
// most, but one entry if there is one.
func PolicyPart(list []MethodPolicy, version uint64, from, limit int) PolicyList {
	part := PolicyList{Version: version}
	from = min(max(from, 0), len(list))
	for i := range list[from:] {
		if limit -= list[from+i].size(); limit < 0 && i > 0 {
			part.Next = from + i
			break
		}
		part.Policies = append(part.Policies, list[from+i])
	}
	return part
}
