package gen

// What IDL text says. Constants and default values are checked for their grammar only:
// no stub depends on them.

// document is one IDL file.
type document struct {
	Includes   []include
	Namespaces []namespace
	Consts     []named
	Typedefs   []*typedef
	Enums      []*enum
	Structs    []*structLike // structs, unions and exceptions
	Services   []*service
}

type include struct {
	Path string
	Line int
}

type namespace struct{ Language, Name string }

// named is a definition of which only the name matters.
type named struct {
	Name string
	Line int
}

type typedef struct {
	Alias       string
	Type        *idlType
	Annotations annotations
	Line        int
}

// enum has its values in the order of the text.
type enum struct {
	named
	Values []EnumValue
}

// structLike is a struct, a union or an exception.
type structLike struct {
	Category    string // the keyword
	Name        string
	Doc         string // the comments in front
	Fields      []*field
	Annotations annotations
	Line        int
}

type service struct {
	Name        string
	Extends     string
	Functions   []*function
	Annotations annotations
	Line        int
}

type function struct {
	Name        string
	Doc         string // the comments in front
	Oneway      bool
	Type        *idlType // nil for void
	Arguments   []*field
	Throws      []*field
	Annotations annotations
	Line        int
}

type field struct {
	ID          int32  // negative if the IDL gives none, from -1 downwards as Thrift counts
	Requirement string // "required" or "optional", "" if the IDL does not say
	HasDefault  bool
	Type        *idlType
	Name        string
	Annotations annotations
	Line        int // of the name
}

// idlType is a type as it is written: a keyword, a container or a name.
type idlType struct {
	Name        string
	Key, Value  *idlType // of a container
	Annotations annotations
}

// annotation is one of a list in parentheses; without a value it has the value "1".
type annotation struct{ Key, Value string }

type annotations []annotation

// Get returns the values of all annotations of a key.
func (a annotations) Get(key string) (values []string) {
	for _, x := range a {
		if x.Key == key {
			values = append(values, x.Value)
		}
	}
	return values
}
