// Package stf runs test scripts in the format of p4c's STF against a switch: a
// script fills tables, sends packets and says what is to come out. p4c's own
// test programs come with such scripts, and ours are written in it too, so one
// script can be run against any executor and against bmv2.
//
//	add TABLE [PRIORITY] KEY:VALUE … ACTION(PARAM:VALUE, …)
//	setdefault TABLE ACTION(PARAM:VALUE, …)
//	packet PORT HEX          send a packet
//	expect PORT [HEX[$]]     the next packet from a port; * matches any digit,
//	                         $ the packet's end; without HEX anything goes
//	mc_mgrp_create GROUP · mc_node_create RID PORT … · mc_node_associate GROUP NODE
//	mirroring_add SESSION PORT · mirroring_add_mc SESSION GROUP
//	register_write NAME INDEX VALUE
//	register NAME INDEX VALUE · counter NAME INDEX PACKETS [BYTES]   what is there now;
//	                         index * is all cells of a counter together, packets only
//	meter NAME INDEX COLOUR  a meter's cell finds all green (0), yellow (1) or red (2)
//	add … = $HANDLE · check_counter NAME(INDEX) [packets|bytes == N] · check_counter NAME($HANDLE) …
//	digest NAME HEX …        the next digest, field by field; "digest none": none comes
//
// Values are 0x, 0b or decimal; * is a wildcard digit of a ternary key, and
// VALUE/LENGTH is a prefix. A key or table may be named by the end of its name.
// Packets from ports that a script does not mention are ignored. A comment
// begins with #. Commands that only print something, or wait, mean nothing; others that are not known are errors.
package stf
