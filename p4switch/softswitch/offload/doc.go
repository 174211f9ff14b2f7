// Package offload deals with frames whose sender left work to the network card:
// checksums that hold only the pseudo header's sum, and super-packets that stand
// for many segments. It is pure.
//
// A packet program must see packets as they would be on a cable, so on the way
// in (Receive) partial checksums are finished and UDP super-packets are cut into
// their datagrams. TCP super-packets stay whole, with the checksum finished as
// if they were one packet; on the way out (Header.Resume) they become
// super-packets again, which the receiving kernel takes as they are.
package offload
