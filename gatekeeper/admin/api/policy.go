package api

// Policy says what becomes of calls of a method when a node fails. Without a
// method it is for all methods of the service of which there is no other.
type Policy struct {
	Service string `json:"service" example:"Arrays"`
	Method  string `json:"method,omitempty" doc:"Absent: all methods of the service of which nothing else is said" example:"addRef"`
	Policy  string `json:"policy" enum:"none,recover,fate-share,tainted" doc:"none: at most once; recover: exactly once, what a failure cut off runs again; fate-share: the other side's unfinished execution is taken back, too; tainted: so are all unfinished descendants"`
	Origin  string `json:"origin" enum:"operator,deployment,service,default" doc:"Who says so. What a caller asks for goes before service and default, and is not known here"`
}

// SetPolicy is the policy that an operator wants.
type SetPolicy struct {
	_      struct{} `additionalProperties:"false"`
	Policy string   `json:"policy" enum:"none,recover,fate-share,tainted" doc:"It holds for calls that are sent from when their nodes know, within a heartbeat"`
}
