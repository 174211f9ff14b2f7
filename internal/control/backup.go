package control

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/internal/share"
)

// The steps of a backup of a memory blade, in their order.
const (
	// BackupPrepare has the blade copy its regions into a file while it goes on. It is asked
	// for again until BackupPart.Ready. A blade whose regions are not to be saved, since its machine's other
	// copy is, skips it.
	BackupPrepare = "prepare"
	// BackupHold has the blade copy its ledgers, and what regions lack since BackupPrepare. Then the blade takes
	// no request that changes something until BackupRelease, or until the hold has lasted two
	// seconds. Clients send again what it drops; commands wait.
	BackupHold = "hold"
	// BackupRelease ends that. It is refused as Stale if the blade has taken requests since
	// the copy was made, or has another memory by now.
	BackupRelease = "release"
	// BackupRead reads a part of the copy.
	BackupRead = "read"
	// BackupDrop forgets the copy.
	BackupDrop = "drop"
)

// BackupPartSize is how many bytes of chunks, or of regions, a BackupPart has at most, unless it is a single
// chunk. Its JSON, where they take a third more, fits MaxMessage.
const BackupPartSize = 512 << 10

// Backup asks a memory blade for a step of a backup.
type Backup struct {
	// ID is the backup's, drawn at random. A hold under another one replaces the copy.
	ID   uint64         `json:"id"`
	Step string         `json:"step"`
	From BackupPosition `json:"from,omitzero"` // where to read
}

// BackupPosition is a position in the copy of a blade: behind so many ledgers, and so many chunks of
// the next one. Behind all ledgers, it is behind so many bytes of regions.
type BackupPosition struct {
	Ledger int   `json:"ledger"`
	Chunk  int   `json:"chunk"`
	Region int64 `json:"region,omitempty"`
}

// BackupPart answers a Backup.
type BackupPart struct {
	Outcome
	// Ready says that few regions are left to copy; of a prepare.
	Ready bool `json:"ready,omitempty"`
	// Birth and Rack are those of the ledgers (Hello.Birth, Welcome.Began), Incarnation is the
	// copy's (Mirror); of a hold.
	Birth       uint64 `json:"birth,omitempty"`
	Rack        uint64 `json:"rack,omitempty"`
	Incarnation uint32 `json:"incarnation,omitempty"`
	// Ledgers and Regions are a part of the copy, More says that there is more from Next on; of
	// a read. Regions are bytes of the file that BackupPrepare began.
	Ledgers []LedgerContent `json:"ledgers,omitempty"`
	Regions []byte          `json:"regions,omitempty"`
	Next    BackupPosition  `json:"next,omitzero"`
	More    bool            `json:"more,omitempty"`
}

// LedgerContent is a ledger with some of its chunks. Further ones with the same name have the
// next chunks.
type LedgerContent struct {
	Name    LedgerName    `json:"name"`
	Run     uint32        `json:"run"`
	Sealed  bool          `json:"sealed,omitempty"`
	Writer  LedgerWriter  `json:"writer,omitzero"`
	Granted LedgerWriter  `json:"granted,omitzero"`
	Owner   share.Owner   `json:"owner,omitzero"`
	First   uint64        `json:"first"` // its first chunk's number, or its next one's if it has none
	Chunks  []LedgerChunk `json:"chunks,omitempty"`
}

// LedgerWriter is an incarnation of a node; zero is nobody.
type LedgerWriter struct {
	Node        netip.Addr `json:"node"`
	Incarnation uint32     `json:"incarnation"`
}

// LedgerChunk is a chunk of a ledger.
type LedgerChunk struct {
	Number    uint64 `json:"n"`
	Continues bool   `json:"c,omitempty"`
	Data      []byte `json:"d"`
}
