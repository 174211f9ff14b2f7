// What rights.p4 knows of packets and registers: headers, metadata, and the parts of register cells.

// How many call slots there are, and how many regions.
#define SLOTS 1048576

// States of a call slot.
const bit<3> SLOT_UNUSED  = 0;
const bit<3> SLOT_OPEN    = 1;
const bit<3> SLOT_CLOSED  = 2; // answered
const bit<3> SLOT_REFUSED = 3; // never permitted
const bit<3> SLOT_FAILED  = 4; // ended by the Gatekeeper

// What a register has of a region: its word.
#define GENERATION(w) w[53:32]
#define OWNER(w)      w[31:20]
#define LENT(w)       w[19:0]
#define MAX_LENT      20w0xFFFFF

// What a register has of a call slot beside its number: its state.
#define PARENT(s)   s[57:38]
#define CALLER(s)   s[37:26]
#define CALLEE(s)   s[25:14]
#define COUNT(s)    s[13:11]
#define LENGTH(s)   s[10:8]  // how many slots the call has
#define PLACE(s)    s[7:6]   // in its call
#define GIVEN(s)    s[5:5]
#define STANDING(s) s[4:4]
#define ENDING(s)   s[3:3]
#define STATE(s)    s[2:0]

#define MAX_CHILDREN 9w255

// Cells of the register that is about all others.
#define ELECTION 32w0 // of the Gatekeeper that used its hand last
#define READY    32w1 // 0: the registers were lost, and nothing passes until they are rebuilt

// Who a source is.
enum bit<8> Sender {
    NONE   = 0,
    NODE   = 1,
    DAEMON = 2,
    MEMORY = 3
}

// What a packet wants. The operations of memory have their own numbers (DSM_ALLOC …).
enum bit<8> Wants {
    NOTHING      = 0,
    ALLOC        = 1,
    READ         = 2,
    WRITE        = 3,
    FREE         = 4,
    PLAIN        = 5, // settle, ledger
    ALLOC_ANSWER = 6, // that the region is allocated
    ANSWER       = 7, // of memory, to anything else
    CALL         = 8, // and one-way
    RETURN       = 9, // reply and exception
    ASK          = 10
}

// What becomes of it. The reasons are those of the field turned.
enum bit<8> Judged {
    PASSES      = 0,
    DENIED      = 1,
    LENT        = 2,
    GONE        = 3,
    NEVER_BEGUN = 4,
    DROPPED     = 5
}

// What the Gatekeeper's hand does. The model has these numbers, too, from 0 on.
enum bit<8> Hand {
    READ_WORDS = 1,
    READ_SLOTS = 2,
    FAIL_CALL  = 3,
    LEND       = 4,
    SEIZE      = 5,
    SET_WORD   = 6,
    SET_SLOT   = 7,
    REBUILT    = 8  // the registers are what they should be: packets may pass
}

// How that has ended.
enum bit<8> Outcome {
    DONE         = 0,
    NOTHING      = 1, // there was nothing to do
    STALE        = 2, // a later Gatekeeper has used its hand
    HAS_CHILDREN = 3,
    DENIED       = 4
}

// An operation of the Gatekeeper, behind an Ethernet header of this type. It is a packet-out,
// answered by a packet-in that is the same with the outcome, and with what was read. A reading has
// room for that behind it: one found_t for words, four for slots.
const bit<16> ETHERTYPE_HAND = 0x88B5; // for experiments within one's own network

header hand_t {
    bit<8>  op;
    bit<8>  outcome;
    bit<16> owner;    // lend, seize: who must own the regions
    bit<16> lessee;   // lend: who may read them
    bit<8>  count;    // of the regions
    bit<8>  reserved;
    bit<64> election; // of the Gatekeeper: the register's is raised to it
    bit<64> number;   // fail call, lend; set word: the word
    bit<32> slot;     // fail call, lend; the first register that is read, or the one that is set
    bit<32> reserved2;
    bit<64> region0;
    bit<64> region1;
    bit<64> region2;
    bit<64> region3;
}

// What a call slot's registers have; or eight words.
header found_t {
    bit<64> number;
    bit<64> state;
    bit<64> parent;
    bit<64> children;
    bit<64> region0;
    bit<64> region1;
    bit<64> region2;
    bit<64> region3;
}

// What the Gatekeeper is told by digest when a node has allocated so many regions of a batch that it needs the next one. It is a hint.
struct half_used_digest_t {
    bit<16> row;  // of who has allocated
    bit<32> slot; // the region's
}

// A list of the regions of one slot of a call; see rpcpacket.ListLayout.
header list_t {
    bit<64> parent_number;
    bit<32> parent_slot;
    bit<8>  count;
    bit<24> reserved;
    bit<64> region0;
    bit<64> region1;
    bit<64> region2;
    bit<64> region3;
}

#define REGION(r) r[41:0]   // slot and generation
#define SLOT_OF(r) ((bit<32>)r[41:22])
#define GENERATION_OF(r) r[21:0]

// What the program knows of a packet that it judges.
struct rights_t {
    bit<8>  wants;
    bit<8>  kind;        // of the sender
    bit<12> row;         // of the sender; 0 if it has none
    bit<32> incarnation; // of the sender, as the Gatekeeper says
    bit<12> to;          // row of the destination; 0 if it has none
    bit<1>  going;       // the destination is gone for good
    bit<8>  judged;
    bit<1>  half_used;
    bit<1>  controls;    // the node may allocate in the region's batch
    bit<1>  tells;       // a digest tells that the batch is half used
    bit<3>  length;      // of a call: how many slots it has
    bit<3>  count0;      // and how many regions each list names
    bit<3>  count1;
    bit<3>  count2;
    bit<3>  count3;
    bit<1>  many;        // too many regions
    bit<1>  lends_on0;   // which lists have a parent
    bit<1>  lends_on1;
    bit<1>  lends_on2;
    bit<1>  lends_on3;
}
