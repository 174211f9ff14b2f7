// Rights in the switch: who may read, write, free, allocate, lend and hand over, in
// registers that the packets themselves change as they pass. docs/rights.md is the
// specification, and p4/rights the executable model: the rows of its tables are named
// here ("call-opens"), and the first row that applies decides.
//
// It judges calls of nodes, which have a row each, requests to memory, and what memory answers.
//
// All that a packet changes, it changes in one action: v1model has an action be atomic.
// So all tables are looked up before.

// For each of the lists of a call, and its regions.
#define LISTS(X) X(0) X(1) X(2) X(3)
#define REGIONS(X, i) X(i, 0) X(i, 1) X(i, 2) X(i, 3)

control Rights(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    register<bit<54>>(SLOTS) words; // by a region's slot

    register<bit<64>>(2) switch_state;

    // By call slot. Next to each other, so that an executor may have them in one record.
    register<bit<64>>(SLOTS) slot_number;
    register<bit<58>>(SLOTS) slot_state;
    register<bit<64>>(SLOTS) slot_parent;   // number of the use of a slot that this one lends on from
    register<bit<8>>(SLOTS)  slot_children; // open slots that lend on from this one
    register<bit<42>>(SLOTS) slot_region0;
    register<bit<42>>(SLOTS) slot_region1;
    register<bit<42>>(SLOTS) slot_region2;
    register<bit<42>>(SLOTS) slot_region3;

    // Which digests of half used batches a port may cause, by its number.
    meter(512, MeterType.packets) half_used_digests;

    // Which node may allocate in which batch of regions of a machine, and whether a digest tells that the batch is half used.
    action may() {}
    action allocates(bit<1> tells) {
        meta.rights.controls = 1;
        meta.rights.tells = tells;
    }
    table control_rule {
        key = {
            meta.rights.to: exact @name("row");
            meta.machine: exact @name("machine");
            meta.region[41:28]: exact @name("batch");
        }
        actions = { allocates; NoAction; }
        const default_action = NoAction();
        size = 65536;
    }

    // Which node may use which block of call slots.
    table block_rule {
        key = {
            meta.rights.row: exact @name("row");
            hdr.rpc.slot[31:4]: exact @name("block");
        }
        actions = { may; NoAction; }
        const default_action = NoAction();
        size = 65536;
    }

    // What actions compute with, one after the other.
    bit<64> ready;    // READY
    bit<64> election; // ELECTION
    bit<32> first;    // slot of a call
    bit<3>  length;   // how many slots it has
    bit<64> number;
    bit<58> state;
    bit<8>  children;
    bit<42> region;
    bit<54> word;
    bit<64> lender; // number of the parent
    bit<58> parent; // its state
    bit<20> listed; // slot of a region
    bit<43> listed0;
    bit<43> listed1;
    bit<43> listed2;
    bit<43> listed3;
    bit<9>  more;
    bit<20> most;   // from which count on a region cannot be lent
    bit<3>  begins; // the state of slots whose use begins
    bit<3>  ends;   // and of those whose use ends
    bit<1>  back;   // what was given is its caller's again
    bit<16> had;
    // What was found out.
    bit<1>  oneway;
    bit<1>  gone;   // the destination takes no new calls
    bit<1>  fresh;
    bit<1>  again;
    bit<1>  same;
    bit<1>  bad;
    bit<1>  foreign;
    bit<1>  lent;
    bit<1>  full;
    bit<1>  parents;
    bit<1>  good;
    bit<1>  lists;
    bit<12> owner;
    bit<12> lessee;

    // ---- parts of actions

    // The end of the i-th slot of a call: what it lists is lent no longer, and its parent has a child
    // less. What was given is the caller's again, if back is set and the callee still has it.
#define END_REGION(i, j) \
    if (COUNT(state) > j) { \
        slot_region##j.read(region, first + i); \
        words.read(word, SLOT_OF(region)); \
        if (GENERATION(word) == GENERATION_OF(region)) { \
            if (GIVEN(state) == 0) { \
                if (LENT(word) != 0) { \
                    words.write(SLOT_OF(region), word - 1); \
                } \
            } else if (back == 1) { \
                if (OWNER(word) == CALLEE(state)) { \
                    words.write(SLOT_OF(region), GENERATION(word) ++ CALLER(state) ++ LENT(word)); \
                } \
            } \
        } \
    }

#define END_SLOT(i) \
    if (length > i) { \
        slot_state.read(state, first + i); \
        REGIONS(END_REGION, i) \
        slot_parent.read(lender, first + i); \
        if (lender != 0) { \
            slot_number.read(number, (bit<32>)PARENT(state)); \
            slot_children.read(children, (bit<32>)PARENT(state)); \
            if (number == lender) { \
                if (children != 0) { \
                    slot_children.write((bit<32>)PARENT(state), children - 1); \
                } \
            } \
        } \
        slot_state.write(first + i, state[57:4] ++ 1w0 ++ ends); \
    }

#define LOOK_FOR_CHILDREN(i) \
    if (length > i) { \
        slot_children.read(children, first + i); \
        if (children != 0) { \
            parents = 1; \
        } \
    }

    // ---- CALL, ONEWAY

    // What the i-th slot says of a call: whether it may open, and whether it is the call's already.
#define LOOK_AT_SLOT(i) \
    if (length > i) { \
        slot_number.read(number, first + i); \
        slot_state.read(state, first + i); \
        if (STATE(state) == SLOT_OPEN) { \
            fresh = 0; \
        } \
        if (number >= hdr.rpc.number) { \
            fresh = 0; \
        } \
        if (number != hdr.rpc.number) { \
            again = 0; \
        } \
        if (LENGTH(state) ++ PLACE(state) != length ++ 2w##i) { \
            again = 0; \
        } \
        if (CALLEE(state) ++ COUNT(state) != meta.rights.to ++ meta.rights.count##i) { \
            same = 0; \
        } \
    }

    // Whether the i-th slot lists what the packet lists for it.
#define SAME_REGION(i, j) \
    if (meta.rights.count##i > j) { \
        slot_region##j.read(region, first + i); \
        if (region != REGION(hdr.list##i.region##j)) { \
            same = 0; \
        } \
    }

    // What a slot lists: 0, or a region with a 1 in front.
#define READ_LISTED(state, slot) \
    slot_region0.read(region, slot); \
    listed0 = COUNT(state) > 0 ? 1w1 ++ region : 0; \
    slot_region1.read(region, slot); \
    listed1 = COUNT(state) > 1 ? 1w1 ++ region : 0; \
    slot_region2.read(region, slot); \
    listed2 = COUNT(state) > 2 ? 1w1 ++ region : 0; \
    slot_region3.read(region, slot); \
    listed3 = COUNT(state) > 3 ? 1w1 ++ region : 0;

    // Whether the region is among them.
#define WHETHER_LISTED \
    if (listed0 == 1w1 ++ region) { \
        lists = 1; \
    } \
    if (listed1 == 1w1 ++ region) { \
        lists = 1; \
    } \
    if (listed2 == 1w1 ++ region) { \
        lists = 1; \
    } \
    if (listed3 == 1w1 ++ region) { \
        lists = 1; \
    }

    // Whether the sender may lend a region, or hand it over, and whether it has to wait.
#define LEND_REGION(i, j) \
    if (meta.rights.count##i > j) { \
        words.read(word, SLOT_OF(hdr.list##i.region##j)); \
        if (GENERATION(word) != GENERATION_OF(hdr.list##i.region##j)) { \
            bad = 1; \
        } \
        if (OWNER(word) != meta.rights.row) { \
            region = REGION(hdr.list##i.region##j); \
            lists = 0; \
            WHETHER_LISTED \
            if (lists == 0) { \
                bad = 1; \
            } \
        } \
        if (LENT(word) >= most) { \
            full = 1; \
        } \
    }

    // The same of a list, whose parent must be good.
#define LEND_LIST(i) \
    listed0 = 0; \
    listed1 = 0; \
    listed2 = 0; \
    listed3 = 0; \
    if (meta.rights.lends_on##i == 1) { \
        slot_number.read(lender, (bit<32>)hdr.list##i.parent_slot[19:0]); \
        slot_state.read(parent, (bit<32>)hdr.list##i.parent_slot[19:0]); \
        slot_children.read(children, (bit<32>)hdr.list##i.parent_slot[19:0]); \
        READ_LISTED(parent, (bit<32>)hdr.list##i.parent_slot[19:0]) \
        if (oneway == 1) { \
            bad = 1; \
        } \
        if (hdr.list##i.parent_slot[31:20] != 0) { \
            bad = 1; \
        } \
        if (lender != hdr.list##i.parent_number) { \
            bad = 1; \
        } \
        if (CALLEE(parent) ++ GIVEN(parent) ++ ENDING(parent) ++ STATE(parent) != meta.rights.row ++ 2w0 ++ SLOT_OPEN) { \
            bad = 1; \
        } \
        more = (bit<9>)children + 1; \
        SAME_PARENTS##i \
        if (more > MAX_CHILDREN) { \
            full = 1; \
        } \
    } \
    REGIONS(LEND_REGION, i)

    // Lists before the i-th one that lend on from the same use of a slot.
#define SAME_PARENT(i, k) \
    if (meta.rights.lends_on##k == 1) { \
        if (hdr.list##k.parent_slot == hdr.list##i.parent_slot) { \
            if (hdr.list##k.parent_number == hdr.list##i.parent_number) { \
                more = more + 1; \
            } \
        } \
    }
#define SAME_PARENTS0
#define SAME_PARENTS1 SAME_PARENT(1, 0)
#define SAME_PARENTS2 SAME_PARENT(2, 0) SAME_PARENT(2, 1)
#define SAME_PARENTS3 SAME_PARENT(3, 0) SAME_PARENT(3, 1) SAME_PARENT(3, 2)

    // Whether a region is listed before: hardly one is, so the regions are compared first.
#define AS(k, l) \
    if (listed == hdr.list##k.region##l[41:22]) { \
        if (meta.rights.count##k > l) { \
            bad = 1; \
        } \
    }
#define AS_ANY(k) AS(k, 0) AS(k, 1) AS(k, 2) AS(k, 3)
#define TWICE(i, j, OTHERS) \
    if (meta.rights.count##i > j) { \
        listed = hdr.list##i.region##j[41:22]; \
        OTHERS \
    }
#define TWICE_WITHIN(i) TWICE(i, 1, AS(i, 0)) TWICE(i, 2, AS(i, 0) AS(i, 1)) TWICE(i, 3, AS(i, 0) AS(i, 1) AS(i, 2))
#define TWICE_BETWEEN(i, OTHERS) TWICE(i, 0, OTHERS) TWICE(i, 1, OTHERS) TWICE(i, 2, OTHERS) TWICE(i, 3, OTHERS)

    // The use of the i-th slot begins.
#define BEGIN_REGION(i, j) \
    region = 0; \
    if (meta.rights.count##i > j) { \
        region = REGION(hdr.list##i.region##j); \
        words.read(word, SLOT_OF(region)); \
        if (oneway == 1) { \
            words.write(SLOT_OF(region), GENERATION(word) ++ meta.rights.to ++ LENT(word)); \
        } else { \
            words.write(SLOT_OF(region), word + 1); \
        } \
    } \
    slot_region##j.write(first + i, region);

#define BEGIN_SLOT(i) \
    if (length > i) { \
        REGIONS(BEGIN_REGION, i) \
        lender = 0; \
        parent = 0; \
        if (meta.rights.lends_on##i == 1) { \
            lender = hdr.list##i.parent_number; \
            PARENT(parent) = hdr.list##i.parent_slot[19:0]; \
            slot_children.read(children, (bit<32>)PARENT(parent)); \
            slot_children.write((bit<32>)PARENT(parent), children + 1); \
        } \
        slot_number.write(first + i, hdr.rpc.number); \
        slot_state.write(first + i, PARENT(parent) ++ meta.rights.row ++ meta.rights.to ++ meta.rights.count##i ++ length ++ 2w##i ++ oneway ++ 2w0 ++ begins); \
        slot_parent.write(first + i, lender); \
        slot_children.write(first + i, 0); \
    }

    action judge_call() {
        switch_state.read(ready, READY);
        meta.rights.judged = Judged.DROPPED; // rebuilding, copy-differs, call-late
        if (ready == 1) {
            first = (bit<32>)hdr.rpc.slot[19:0];
            length = meta.rights.length;
            oneway = 0;
            most = MAX_LENT;
            if (hdr.rpc.type == RPC_ONEWAY) {
                oneway = 1;
                most = 1;
            }
            gone = meta.rights.going;
            if (meta.rights.to == 0) {
                gone = 1;
            }
            fresh = 1;
            again = 1;
            same = 1;
            LISTS(LOOK_AT_SLOT)
            if (fresh == 1) {
                if (gone == 1) { // call-going
                    meta.rights.judged = Judged.NEVER_BEGUN;
                } else {
                    bad = 0;
                    full = 0;
                    LISTS(LEND_LIST)
                    LISTS(TWICE_WITHIN)
                    if (length > 1) {
                        TWICE_BETWEEN(1, AS_ANY(0))
                        TWICE_BETWEEN(2, AS_ANY(0) AS_ANY(1))
                        TWICE_BETWEEN(3, AS_ANY(0) AS_ANY(1) AS_ANY(2))
                    }
                    if (bad == 0 && full == 1) { // call-lent
                        meta.rights.judged = Judged.LENT;
                    } else {
                        begins = SLOT_OPEN; // call-opens, oneway-opens
                        meta.rights.judged = Judged.PASSES;
                        if (bad == 1) { // call-refused
                            begins = SLOT_REFUSED;
                            oneway = 0;
                            meta.rights.count0 = 0;
                            meta.rights.count1 = 0;
                            meta.rights.count2 = 0;
                            meta.rights.count3 = 0;
                            meta.rights.lends_on0 = 0;
                            meta.rights.lends_on1 = 0;
                            meta.rights.lends_on2 = 0;
                            meta.rights.lends_on3 = 0;
                            meta.rights.judged = Judged.DENIED;
                        }
                        LISTS(BEGIN_SLOT)
                    }
                }
            } else if (again == 1) {
                slot_state.read(state, first);
                if (STATE(state) == SLOT_REFUSED) { // copy-refused
                    meta.rights.judged = Judged.DENIED;
                } else if (STATE(state) == SLOT_FAILED || (STATE(state) == SLOT_CLOSED && gone == 1)) { // copy-failed
                    meta.rights.judged = Judged.GONE;
                } else {
                    REGIONS(SAME_REGION, 0)
                    REGIONS(SAME_REGION, 1)
                    REGIONS(SAME_REGION, 2)
                    REGIONS(SAME_REGION, 3)
                    if (same == 1) { // copy
                        meta.rights.judged = Judged.PASSES;
                    }
                }
            }
        }
    }

    // ---- REPLY, EXCEPTION

    // Whether a result may be returned: the caller's already, or the callee's and not lent.
#define LOOK_AT_RESULT(i, j) \
    if (meta.rights.count##i > j) { \
        words.read(word, SLOT_OF(hdr.list##i.region##j)); \
        if (GENERATION(word) != GENERATION_OF(hdr.list##i.region##j)) { \
            foreign = 1; \
            bad = 1; \
        } else if (OWNER(word) == meta.rights.to) { \
            had = had | 16w1 << (4 * i + j); \
        } else { \
            foreign = 1; \
            if (OWNER(word) != meta.rights.row) { \
                bad = 1; \
            } \
            if (LENT(word) != 0) { \
                lent = 1; \
            } \
        } \
    }

#define RETURN_RESULT(i, j) \
    if (meta.rights.count##i > j) { \
        words.read(word, SLOT_OF(hdr.list##i.region##j)); \
        words.write(SLOT_OF(hdr.list##i.region##j), GENERATION(word) ++ meta.rights.to ++ LENT(word)); \
    }

    action judge_return() {
        first = (bit<32>)hdr.rpc.slot[19:0];
        switch_state.read(ready, READY);
        slot_number.read(number, first);
        slot_state.read(state, first);
        length = LENGTH(state);
        meta.rights.judged = Judged.DROPPED; // rebuilding, answer-foreign
        if (ready == 1 && hdr.rpc.slot[31:20] == 0 && PLACE(state) == 0 && length != 0 && (STATE(state) == SLOT_OPEN || STATE(state) == SLOT_CLOSED)
                && STANDING(state) == 0 && number == hdr.rpc.number && CALLER(state) == meta.rights.to && CALLEE(state) == meta.rights.row) {
            bad = meta.rights.many;
            foreign = meta.rights.many; // not the caller's
            lent = 0;
            parents = 0;
            had = 0;
            LISTS(LOOK_FOR_CHILDREN)
            REGIONS(LOOK_AT_RESULT, 0)
            REGIONS(LOOK_AT_RESULT, 1)
            REGIONS(LOOK_AT_RESULT, 2)
            REGIONS(LOOK_AT_RESULT, 3)
            meta.rights.judged = Judged.DENIED; // exception-results, answer-denied, answer-changed
            if (hdr.rpc.type == RPC_EXCEPTION && (meta.rights.many == 1
                    || meta.rights.count0 != 0 || meta.rights.count1 != 0 || meta.rights.count2 != 0 || meta.rights.count3 != 0)) {
            } else if (STATE(state) == SLOT_CLOSED) {
                if (foreign == 0) { // answer-copy
                    meta.rights.judged = Judged.PASSES;
                }
            } else if (parents == 1) { // answer-children
                meta.rights.judged = Judged.LENT;
            } else if (bad == 1) {
            } else if (lent == 1) { // answer-lent
                meta.rights.judged = Judged.LENT;
            } else { // answer-closes, given-back
                ends = SLOT_CLOSED;
                back = 0;
                if (hdr.rpc.type == RPC_EXCEPTION) {
                    back = 1;
                }
                meta.rights.judged = Judged.PASSES;
                REGIONS(RETURN_RESULT, 0)
                REGIONS(RETURN_RESULT, 1)
                REGIONS(RETURN_RESULT, 2)
                REGIONS(RETURN_RESULT, 3)
                LISTS(END_SLOT)
            }
            if (meta.rights.judged == Judged.PASSES) {
                hdr.rpc.had = had;
                hdr.rpc.had_twin = ~had;
            }
        }
    }

    // ---- ASK

    action judge_question() {
        first = (bit<32>)hdr.rpc.slot[19:0];
        switch_state.read(ready, READY);
        slot_number.read(number, first);
        slot_state.read(state, first);
        if (hdr.rpc.slot[31:20] != 0 || number != hdr.rpc.number) {
            state = 0; // it is that of another call
        }
        meta.rights.judged = Judged.DROPPED; // rebuilding
        if (ready == 1) {
            meta.rights.judged = Judged.PASSES; // ask
            if (STATE(state) == SLOT_FAILED || (STATE(state) != SLOT_OPEN && (meta.rights.to == 0 || meta.rights.going == 1))) { // ask-failed, ask-going
                meta.rights.judged = Judged.GONE;
            }
        }
    }

    // ---- memory

    action judge_access() {
        switch_state.read(ready, READY);
        words.read(word, SLOT_OF(meta.region));
        good = 0;
        if (GENERATION(word) == GENERATION_OF(meta.region)) {
            good = 1;
        }
        meta.rights.judged = Judged.DENIED; // alloc-denied, write-denied, read-denied
        if (ready != 1) { // rebuilding
            meta.rights.judged = Judged.DROPPED;
        } else if (meta.rights.wants == Wants.ALLOC) {
            if (meta.rights.controls == 1) { // alloc
                meta.rights.judged = Judged.PASSES;
            }
        } else if (meta.rights.wants == Wants.ALLOC_ANSWER) {
            meta.rights.judged = Judged.PASSES; // answered
            if (meta.rights.controls == 1 && GENERATION_OF(meta.region) > GENERATION(word)) { // allocated
                words.write(SLOT_OF(meta.region), GENERATION_OF(meta.region) ++ meta.rights.to ++ 20w0);
                if (meta.rights.tells == 1 && meta.region[27:27] == 1 && meta.region[25:22] == 0) { // the 33rd and the 49th of the batch
                    meta.rights.half_used = 1;
                }
            }
        } else if (meta.rights.wants == Wants.WRITE || meta.rights.wants == Wants.FREE) {
            if (good == 1 && OWNER(word) == meta.rights.row) {
                meta.rights.judged = Judged.LENT; // write-lent
                if (LENT(word) == 0) { // write
                    meta.rights.judged = Judged.PASSES;
                }
            }
        } else if (meta.rights.wants == Wants.READ) {
            if (hdr.dsm.slot == 0 && hdr.dsm.number == 0) {
                if (good == 1 && OWNER(word) == meta.rights.row) { // read-own
                    meta.rights.judged = Judged.PASSES;
                }
            } else {
                first = (bit<32>)hdr.dsm.slot[19:0];
                slot_number.read(number, first);
                slot_state.read(state, first);
                READ_LISTED(state, first)
                region = meta.region;
                lists = 0;
                WHETHER_LISTED
                if (good == 1 && lists == 1 && hdr.dsm.slot[31:20] == 0 && STATE(state) == SLOT_OPEN && GIVEN(state) == 0
                        && number == hdr.dsm.number && CALLEE(state) == meta.rights.row) { // read-by-slot
                    meta.rights.judged = Judged.PASSES;
                }
            }
        } else { // plain, answered
            meta.rights.judged = Judged.PASSES;
        }
    }

    // ---- the Gatekeeper's hand

    // A Gatekeeper that was replaced is stale. P4Runtime cannot write a register of every target, so the
    // first operation of the next one raises the election id.
#define NOT_STALE \
    switch_state.read(election, ELECTION); \
    hdr.hand.outcome = Outcome.STALE; \
    if (hdr.hand.election >= election) { \
        switch_state.write(ELECTION, hdr.hand.election);

    action hand_read_words() {
        NOT_STALE
            hdr.hand.outcome = Outcome.DONE;
#define READ_WORD(n, field) \
            word = 0; \
            words.read(word, hdr.hand.slot + n); \
            hdr.found0.field = (bit<64>)word;
            READ_WORD(0, number) READ_WORD(1, state) READ_WORD(2, parent) READ_WORD(3, children)
            READ_WORD(4, region0) READ_WORD(5, region1) READ_WORD(6, region2) READ_WORD(7, region3)
        }
    }

    action hand_read_slots() {
        NOT_STALE
            hdr.hand.outcome = Outcome.DONE;
#define READ_REGION(n, j) \
            region = 0; \
            slot_region##j.read(region, hdr.hand.slot + n); \
            hdr.found##n.region##j = (bit<64>)region;
#define READ_SLOT(n) \
            number = 0; \
            slot_number.read(number, hdr.hand.slot + n); \
            hdr.found##n.number = number; \
            state = 0; \
            slot_state.read(state, hdr.hand.slot + n); \
            hdr.found##n.state = (bit<64>)state; \
            number = 0; \
            slot_parent.read(number, hdr.hand.slot + n); \
            hdr.found##n.parent = number; \
            children = 0; \
            slot_children.read(children, hdr.hand.slot + n); \
            hdr.found##n.children = (bit<64>)children; \
            REGIONS(READ_REGION, n)
            READ_SLOT(0) READ_SLOT(1) READ_SLOT(2) READ_SLOT(3)
        }
    }

    // The i-th slot of a call whose children end first.
#define MARK_SLOT(i) \
    if (length > i) { \
        slot_state.read(state, first + i); \
        slot_state.write(first + i, state | 58w8); \
    }

    action hand_fail() {
        NOT_STALE
            first = (bit<32>)hdr.hand.slot[19:0];
            slot_number.read(number, first);
            slot_state.read(state, first);
            length = LENGTH(state);
            hdr.hand.outcome = Outcome.NOTHING;
            if (hdr.hand.slot[31:20] == 0 && PLACE(state) == 0 && length != 0 && STATE(state) == SLOT_OPEN && number == hdr.hand.number) {
                parents = 0;
                LISTS(LOOK_FOR_CHILDREN)
                if (parents == 1) {
                    hdr.hand.outcome = Outcome.HAS_CHILDREN;
                    LISTS(MARK_SLOT)
                } else {
                    ends = SLOT_FAILED;
                    back = 1;
                    hdr.hand.outcome = Outcome.DONE;
                    LISTS(END_SLOT)
                }
            }
        }
    }

#define SHARE_LOOK(j) \
    if (hdr.hand.count > j) { \
        words.read(word, SLOT_OF(hdr.hand.region##j)); \
        if (GENERATION(word) ++ OWNER(word) != GENERATION_OF(hdr.hand.region##j) ++ owner) { \
            bad = 1; \
        } \
        if (LENT(word) == MAX_LENT) { \
            bad = 1; \
        } \
    }
#define SHARE_TWICE(j, l) \
    if (hdr.hand.count > j) { \
        if (hdr.hand.region##j[41:22] == hdr.hand.region##l[41:22]) { \
            bad = 1; \
        } \
    }
#define SHARE_REGION(j) \
    region = 0; \
    if (hdr.hand.count > j) { \
        region = REGION(hdr.hand.region##j); \
        words.read(word, SLOT_OF(region)); \
        words.write(SLOT_OF(region), word + 1); \
    } \
    slot_region##j.write(first, region);

    action hand_lend() {
        NOT_STALE
            first = (bit<32>)hdr.hand.slot[19:0];
            owner = hdr.hand.owner[11:0];
            lessee = hdr.hand.lessee[11:0];
            bad = 0;
            slot_number.read(number, first);
            slot_state.read(state, first);
            if (hdr.hand.slot[31:20] != 0 || STATE(state) == SLOT_OPEN || number > hdr.hand.number || hdr.hand.count > 4
                    || owner == 0 || hdr.hand.owner[15:12] != 0 || lessee == 0 || hdr.hand.lessee[15:12] != 0) {
                bad = 1;
            }
            LISTS(SHARE_LOOK)
            SHARE_TWICE(1, 0) SHARE_TWICE(2, 0) SHARE_TWICE(2, 1) SHARE_TWICE(3, 0) SHARE_TWICE(3, 1) SHARE_TWICE(3, 2)
            hdr.hand.outcome = Outcome.DENIED;
            if (number == hdr.hand.number && hdr.hand.slot[31:20] == 0) {
                hdr.hand.outcome = Outcome.NOTHING;
            } else if (bad == 0) {
                hdr.hand.outcome = Outcome.DONE;
                LISTS(SHARE_REGION)
                slot_number.write(first, hdr.hand.number);
                slot_state.write(first, 20w0 ++ owner ++ lessee ++ hdr.hand.count[2:0] ++ 3w1 ++ 3w0 ++ 2w2 ++ SLOT_OPEN);
                slot_parent.write(first, 0);
                slot_children.write(first, 0);
            }
        }
    }

    action hand_seize() {
        NOT_STALE
            words.read(word, SLOT_OF(hdr.hand.region0));
            hdr.hand.outcome = Outcome.DENIED;
            if (hdr.hand.count == 1 && GENERATION(word) == GENERATION_OF(hdr.hand.region0) && (bit<16>)OWNER(word) == hdr.hand.owner && LENT(word) == 0) {
                hdr.hand.outcome = Outcome.DONE;
                words.write(SLOT_OF(hdr.hand.region0), GENERATION(word) ++ 32w0);
            }
        }
    }

    action hand_set() {
        NOT_STALE
            switch_state.read(ready, READY);
            hdr.hand.outcome = Outcome.DENIED;
            if (ready != 1) {
                hdr.hand.outcome = Outcome.DONE;
                if (hdr.hand.op == Hand.SET_WORD) {
                    words.write(hdr.hand.slot, hdr.hand.number[53:0]);
                } else {
                    slot_number.write(hdr.hand.slot, hdr.found0.number);
                    slot_state.write(hdr.hand.slot, hdr.found0.state[57:0]);
                    slot_parent.write(hdr.hand.slot, hdr.found0.parent);
                    slot_children.write(hdr.hand.slot, hdr.found0.children[7:0]);
                    slot_region0.write(hdr.hand.slot, REGION(hdr.found0.region0));
                    slot_region1.write(hdr.hand.slot, REGION(hdr.found0.region1));
                    slot_region2.write(hdr.hand.slot, REGION(hdr.found0.region2));
                    slot_region3.write(hdr.hand.slot, REGION(hdr.found0.region3));
                }
            }
        }
    }

    action hand_rebuilt() {
        NOT_STALE
            hdr.hand.outcome = Outcome.DONE;
            switch_state.write(READY, 1);
        }
    }

    action hand_denied() {
        NOT_STALE
            hdr.hand.outcome = Outcome.DENIED;
        }
    }

    // ---- the way of a packet

    // What a list says. The count is the packet's, which may be too large.
#define TAKE_LIST(i) \
    if (hdr.list##i.isValid()) { \
        meta.rights.count##i = hdr.list##i.count[2:0]; \
        if (hdr.list##i.count > 4) { \
            meta.rights.many = 1; \
        } \
        if (hdr.list##i.parent_slot != 0 || hdr.list##i.parent_number != 0) { \
            meta.rights.lends_on##i = 1; \
        } \
    }

    action take_lists() {
        meta.rights.length = 1;
        if (hdr.rpc.lists > 4) {
            meta.rights.many = 1;
        } else if (hdr.rpc.lists != 0) {
            meta.rights.length = hdr.rpc.lists[2:0];
        }
        LISTS(TAKE_LIST)
    }

    action meter_half_used() {
        half_used_digests.execute_meter<bit<8>>((bit<32>)std.ingress_port, meta.color);
    }

    apply {
        bit<8> wants = meta.rights.wants;
        if (hdr.hand.isValid()) {
            if (hdr.hand.op == Hand.READ_WORDS) {
                hand_read_words();
            } else if (hdr.hand.op == Hand.READ_SLOTS) {
                hand_read_slots();
            } else if (hdr.hand.op == Hand.FAIL_CALL) {
                hand_fail();
            } else if (hdr.hand.op == Hand.LEND) {
                hand_lend();
            } else if (hdr.hand.op == Hand.SEIZE) {
                hand_seize();
            } else if (hdr.hand.op == Hand.SET_WORD || hdr.hand.op == Hand.SET_SLOT) {
                hand_set();
            } else if (hdr.hand.op == Hand.REBUILT) {
                hand_rebuilt();
            } else {
                hand_denied();
            }
        } else if (wants == Wants.CALL || wants == Wants.RETURN || wants == Wants.ASK) {
            bit<32> said = hdr.rpc.caller_incarnation;
            if (wants == Wants.RETURN) {
                said = hdr.rpc.callee_incarnation;
            }
            meta.rights.judged = Judged.DROPPED;
            // identity, kind, no-slot
            if (said == meta.rights.incarnation && meta.rights.kind == Sender.NODE && hdr.rpc.number != 0) {
                take_lists();
                if (wants == Wants.RETURN) {
                    judge_return();
                } else if (wants == Wants.ASK) {
                    judge_question();
                } else if (meta.rights.many == 0 && (bit<5>)hdr.rpc.slot[3:0] + (bit<5>)meta.rights.length <= 16
                        && hdr.rpc.number[63:36] == meta.rights.incarnation[27:0] && meta.rights.incarnation[31:28] == 0) {
                    if (block_rule.apply().hit) { // else call-block; before, call-malformed and call-number
                        judge_call();
                    }
                }
            }
        } else {
            bool answer = wants == Wants.ANSWER || wants == Wants.ALLOC_ANSWER;
            bit<32> said = hdr.dsm.incarnation;
            if (answer) {
                said = hdr.dsm.blade_incarnation;
            }
            meta.rights.judged = Judged.DROPPED;
            // identity, kind
            if (said == meta.rights.incarnation
                    && (wants == Wants.PLAIN || (answer && meta.rights.kind == Sender.MEMORY)
                        || (meta.rights.kind == Sender.NODE && meta.rights.row != 0))) { // row 0 would be nobody, who owns what is seized
                if (wants == Wants.ALLOC || wants == Wants.ALLOC_ANSWER) {
                    if (wants == Wants.ALLOC) {
                        meta.rights.to = meta.rights.row;
                    }
                    control_rule.apply();
                }
                judge_access();
            }
            if (meta.rights.half_used == 1) {
                meter_half_used();
                if (meta.color != RED) {
                    meta.half_used = { (bit<16>)meta.rights.to, SLOT_OF(meta.region) };
                    digest<half_used_digest_t>(1, meta.half_used);
                }
            }
        }
    }
}
