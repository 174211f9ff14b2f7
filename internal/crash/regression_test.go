package crash

import (
	"fmt"
	"testing"
)

// TestRegressions runs cases that have failed once. (A change of the generator makes
// other programs of their seeds; what they have shown has tests of its own, which are
// named.)
func TestRegressions(t *testing.T) {
	sum := new(tally)
	defer func(was string) { *flagMix = was }(*flagMix)
	*flagMix = wide
	for _, c := range []struct {
		seed                    uint64
		setting, network, point string
	}{
		// A node left in order while calls to it were still on their way. They failed, as if they
		// might have run.
		{87, "age=453427h10m29.229294344s,pairs", "good", "68+B:stop:3.103600295s,93-A:drain:254.992776ms"},
		// A job's second incarnation was told to stop before its main had begun again, and the
		// job counted as done.
		{90129, "age=272518h38m4.183571883s,jumps,limits=622847,pairs", uneven, "96-B:drain:780.594198ms,153-B:drain:23.529017ms"},
		// A caller had gone on in its session before a call began that it had given up. The ledger got a record of the
		// beginning that did not follow, and the node could not read it when it began anew.
		{997014, "pairs", slow, "149-B:drain:232.025443ms"},
		// A callee had refused a call with a pointer whose time was over, and the refusal was lost. The Gatekeeper answered the next
		// copy itself, as unavailable.
		{248, "log=179482,sync,age=471704h3m40.386785642s,jumps,lends", "lossy", "31+log:fill:213.895964ms"},
		// A program was killed while its blade drained, and there was no other blade. New calls failed instead of waiting.
		{6000035, "mtu=37307,age=491182h46m34.229402799s,pairs,long", "lossy", "67+gk:restart:321.947µs,96-C:drain:3.531164903s,178+C:kill"},
		// An acknowledgement was lost of a held call's answer with regions, its caller left, and a copy of the answer was taken for that to
		// a direct call. No call is held for its outcome any more.
		{120, "log=775593,lends", "good", "63-B:pause:53.41914ms,88+gk:restart:70.508863ms"},
		// A call with a deadline had begun in time. It was run again, and answered as if it had not begun.
		{20150, "pairs", "lossy", "659+A:stop:3.653472054s"},
		// An execution was handed over, and its node died before the Gatekeeper had heard of it. The next run did
		// not look for the regions of the first one.
		{20473, "", "good", "88+B:kill,88+A:cut:9.616978487s,93-s3:cut:4.108141723s"},
		// An answer to an allocation was lost with the Gatekeeper, and its machine failed. The execution allocated elsewhere and was
		// committed. Nobody freed the first region, since the node had another incarnation by then.
		{66, "sync,lends,disks", "good", "212-gk:restart:1.43984117s,243+m2:stop:3.636483383s"},
		// A program was told to stop while it joined, and left in order, with its node's calls: simrack.TestDrainedWhileItJoins.
		{31012, "", uneven, "128+C:cut:2.246196ms,217-B:drain:288.463091ms"},
		// A blade was lost with a ledger on it. The execution ran again, and its call differed.
		{20412, "", "good", "40-m2:cut:9.986135305s"},
		// The oracle did not know that a call runs once more, and may bring something else, when its callee's ledger is lost: TestForLoss_Journal.
		{261, "log=887767,limits=586860,lends", "good", "45+m2:stop:3.432646653s,53-A:cut:245.11816ms"},
		// A replaced Gatekeeper said that an answer was not logged. No answer is any more.
		{70199, "mtu=9000,limits=921264,pairs,calls=152", uneven, "1663-gk:oust:1.48498ms"},
		// A node got a ledger elsewhere while its memory blade was away, and the former one was left
		// there for ever.
		{169, "mtu=65535,age=290252h19m41.859203313s,limits=442275", slow, "52+B:drain:3.584965378s,57+m1:pause:7.92761569s"},
		{158, "mtu=4000,sync,age=232605h30m56.820217205s,jumps", "good", "362+m2:pause:5.075508156s,392-B:cut:5.865399738s"},
		{33, "mtu=30847,age=456569h0m0.346522182s", "good", "195+B:drain:3.431765108s,220-m1:stop:5.428822448s,260-m2:cut:218.785416ms"},
		{245, "mtu=65535,age=353734h31m0.892145005s", "lossy", "71-m2:kill:714.739795ms,103+m1:stop:5.460475061s,253+main0:cut:173.069014ms,284-s4:cut:4.612124089s"},
		// The log had lost its election id with the power, and the clock was behind: p4rtclient.TestVacant.
		{300, "age=400000h,jumps,pairs", "good", "60-log:power:20ms"},
		// The node of a main ended while the main waited for an answer that a former run had got. Main failed as nondeterminism: rpc.TestJournal_NodeEnded.
		{2611300697, "mtu=9000,age=398635h13m16.127106598s,jumps,pairs,long,lends,byhand,calls=30", "good", "3218-A:cut:2.069071604s,4048-main0:cut:1.499147468s,4048-m2:pause:209.36131ms,4065+log:fill:2.346460278s"},
		// A node was told to move before it had exported its service: calls were refused for good
		// that were to wait for its next incarnation.
		{3083, "", "good", "23-gk:restart:1.240483241s,242+B:cut:228.9µs,268-B:drain:163.219798ms"},
		// A handler of policy none had made an exactly-once call, whose delivery was lost with the switch.
		// Its node failed and began anew: nobody sent the call again.
		{30080, "pairs", "good", "150+A:kill,150-sw:restart:135.704521ms"},
		// The nodes that ended mains were not the owners of the mains' names (the explorer's fault).
		{171, "age=259145h47m38.855201289s", slow, "56-main0:stop:5.042803066s"},
		// A late copy of the message that hands a direct call over brought it back to the Gatekeeper
		// after it was forgotten. No such message exists any more.
		{50026, "pairs", "late", "74-C:cut:9.462355788s"},
		// A program began again while no machine was in service for its node's ledger: it ran without
		// one, and did not answer the direct calls that waited for it: simrack.TestLedgerAway.
		{195001, "mtu=1500,age=479258h35m43.639976266s,jumps,pairs", slow, "34-B:cut:9.864912881s,54+m2:stop:4.957947762s,77-m1:pause:4.838669849s"},
		// A copy filled another one in an epoch that began there later: what was appended to ledgers
		// and written then was not given to the new copy: memory.TestFillInLaterEpoch.
		// A caller left whose call had been handed over and ran on: the call's own calls were forgotten,
		// and it waited for ever. Nothing is handed over any more.
		{710079, "sync,age=489198h14m10.901344074s,pairs", slow, "60-sw:stall:6.018128629s"},
		// A node's ledger was lost before its first record, which was to be a large one-way's: nobody noticed.
		{62027, "long,lends", "good", "0-gk:restart:1.154155102s,19+s3:cut:79.322µs,19-m2:cut:73.318082ms"},
		// Callees forgot the calls of an execution that was handed over before the Gatekeeper had its answer, and it was
		// run again; and late copies of such calls were run.
		{3000164, "age=281712h53m28.406436076s,pairs", "lossy", "213+C:cut:1.157119ms"},
		{3001004, "age=440098h1m19.652090805s,jumps,limits=434153,lends", "late", "63-A:kill,86+s3:cut:5.965221333s"},
		// A service's state was lost: the regions that were lent to it stayed so, and calls of policy none waited for its move.
		{3001051, "mtu=39413,long,lends", uneven, "88-m1:cut:7.605383365s"},
		{3001163, "mtu=9000,limits=1006723", "good", "209-C:drain:824.892118ms,209-m2:cut:4.359878808s"},
		// A service waited for a call whose delivery was lost and which its caller had given up.
		{
			3001099, "sync,age=356251h10m21.830224138s,pairs", "lossy",
			"151-A:drain:821.153µs,607-m2:pause:31.161058ms,616-sw:hangup,728-sw:restart:104.367559ms",
		},
		// Memory was silent for three seconds, and a large one-way found "no space".
		{3000209, "sync,age=258219h30m38.382149632s,pairs,long,lends", slow, "8-m1:stop:3.072889562s,21+gk:restart:34.839117ms"},
		// A held call was given to a node that was leaving for good while another one was to come back.
		{4000513, "mtu=65535,sync", uneven, "37+B:drain:2.15340178s,37-log:power:205.897918ms,47-B:kill"},
		// A callee that was handed over answered a direct main with pointers. The Gatekeeper waited until the main was handed
		// over, which had no need of that. Nothing is handed over any more.
		{8000748, "sync,age=404089h18m41.825515711s,jumps,pairs,lends", "good", "235+A:cut:211.736441ms,239+s3:cut:6.050206858s"},
		// A caller called a node that closed again and again.
		{312, "age=418076h47m51.818233024s,jumps,limits=256182,pairs,calls=27", "good", "1693+B:drain:2.357834ms,1693+m2:pause:6.843447498s,1732+gk:restart:132.735262ms"},
		{195044, "age=247321h48m39.118410343s,limits=217371,pairs", "lossy", "100+m1:kill:209.105µs"},
		// Both blades of a machine began anew, and the state of a service was lost with its ledger.
		// Its callers waited for ever: simrack.TestStatesLost.
		{195, "log=1037480,sync,age=251871h55m22.063370243s,jumps,pairs,calls=209", "good", "1276-m1:kill:356.411844ms,1305-m1:end:69.006196ms,1332-sw:hangup,1451-m2:end:405.740832ms"},
		// A node that closed refused a one-way, and the refusal was lost. Its next incarnation dropped
		// the copies for ever: direct.TestRefusedForGood.
		{951056, "pairs,long", "late", "64-m2:kill:946.626827ms,245+B:drain:776.393869ms"},
		// Direct executions had allocated regions, and these were lost with their nodes' ledgers. The
		// regions' records were left: simrack.TestDirectRegions_Lost.
		{951108, "pairs,long", uneven, "257+m2:cut:136.059878ms,359+m1:end:408.109949ms"},
		// A caller was gone for good while its call ran, of which the ledger had nothing. The answer was kept for ever, and so was the
		// node's heir: rpc/direct.TestBuriedWhileItRuns.
		{910048, "age=264677h59m50.66615301s,limits=830170,pairs,lends", "late", "127+gk:oust:1.670064479s,447+m2:stop:6.229970501s,463+client0:kill,476+A:kill"},
		// A main was stopped while it waited for a branch, and journalled that: rpc.TestMainStopped.
		{998039, "pairs", "good", "81+B:redeploy:48.376549ms,94-B:stop:488.528048ms,150+A:drain:4.929981ms,181-main0:stop:3.843099153s"},
		// A main's ledger was lost, so its deployment kept the main's name, and the explorer waited in vain to end second runs of
		// the main before it undeployed the deployment (the explorer's fault).
		{7016, "mtu=1280,age=435409h35m29.505586984s,jumps", "lossy", "115-m2:cut:3.90509016s,216+main1:twin,216+A:cut:8.359013295s"},
		// Both blades of a machine reported, and obeyed no command in time: the Gatekeeper doubted one, then the other, and probed the switch
		// without end.
		{9000050, "pairs,lends", "good", "208-m2:stop:2.782976ms,208+m2:stop:5.928204153s,208-A:pause:5.809331092s,210+m1:stop:5.020263664s"},
		// A blade was cut off while a durable main waited for room in its ledger. What the main did failed as no space, and not as
		// unavailable.
		{55, "sync,age=363286h37m57.681750492s,jumps,pairs,long,lends,byhand", "good", "36+B:cut:718.5ms"},
		// The machine with a main's ledger had lost it. A checkpoint failed as internal, and not as unavailable.
		{99, "sync,age=423763h20m55.163361226s,jumps,long,byhand", uneven, "120+m2:kill:107.323349ms,120+m2:pause:4.361460193s"},
		// A change of state that fitted only within a base was not written as one, and its ledger took no more calls: simrack.TestLargestState.
		{304, "room=960851,large=60053", "good", ""},
		// A call of policy none had lent memory, and its callee failed. The caller heard of that before the switch had given it its rights back, and was
		// denied what it did next: from the Gatekeeper, and when it asked where the callee was.
		{922, "mtu=65535,sync,age=431085h3m4.836847767s,limits=36488,pairs,lends,byhand,disks", slow, "198+A:cut:909.462837ms"},
		{990017, "mtu=1500,age=415123h5m39.03858854s,limits=176421,pairs,long", slow, "1987+A:kill"},
		{254, "limits=296717,long", "good", "20-sw:hangup,27-m2:end:56.296419ms,61+B:stop:3.951097919s,106-client1:kill"},
		// A later incarnation of a caller had sent a call again in the same slot, under a later number, and was answered. When the call was
		// forgotten, only its first number was refused: a late copy of the second ran it again (rpc/direct: TestForgottenUnderALaterNumber).
		{261, "log=887767,limits=586860,long", "late", "204-A:pause:3.128963108s,210-A:kill"},
		// An answer that hands regions over went to a later incarnation of its caller in the slot of the former one's call. That incarnation had used the
		// slot for other calls, so the Gatekeeper took the answer for a late one, each time.
		{7000080, "mtu=37923,sync,age=465917h15m16.077415588s", slow, "3508-sw:restart:274.506896ms,3512+A:kill,5071-s4:stop:4.498563479s"},
		// A node had lost its ledger, and its execution began anew, got other regions, and made a call that was open still. The Gatekeeper refused that as a
		// bad request, and not as nondeterminism.
		{909000972, "sync,age=493610h29m13.169404838s,lends,room=1762165,large=6883", "good", "127-m2:cut:7.641261224s,139-log:fill:794.925µs,191+B:kill,210+B:cut:2.597245392s"},
		// A node freed what it had kept for later while the machine had no copy in service. It took that for done, and the regions stayed its own.
		{147, "mtu=4000,sync,age=464829h38m10.293110772s,jumps,pairs,byhand", "good", "159-m2:stop:3.388015373s,199+m1:end:68.986539ms,311-m1:pause:2.048283984s,311-m2:pause:2.686630414s"},
		// A program was deployed on a blade that had not reported since the Gatekeeper began (the explorer's fault).
		{909000077, "age=240877h30m32.714722405s,pairs,lends,calls=17", "good", "1444+m2:cut:1.080656ms,1482-gk:restart:1.3135588s,1482+C:redeploy:920.938µs,1499-log:power:2.839390923s"},
		// A caller's next incarnation gave up a large call of policy none that had not come whole: it ran for ever (rpc.TestLargeGivenUp).
		{909005921, "log=764700,pairs,long,lends", "lossy", "386+A:cut:7.150609428s,386-m1:stop:5.837508852s"},
		// All calls of one owner waited for room that its share did not have, and ended as no space (simrack.TestRoom_InTurn).
		{909004302, "age=446414h34m38.346155525s,pairs,room=98715,throng=20", "lossy", "2552-B:kill,2587+gk:restart:1.794721682s"},
		// A memory blade was welcomed again while it was being filled, and ended, since it could not be told whose batches are
		// (dsm/memory.TestGrantWhileFilled). Its packets were taken for a flood before that.
		{909000501, "mtu=1280,sync,age=329973h57m46.891571382s,jumps,pairs,long,room=54327864,large=212218", "late", "5408+m1:pause:6.337731028s,21334-m2:pause:3.710197476s,24258+sw:stall:2.675582635s,35645-m2:pause:1.607381706s"},
		// A program that was started by hand joined again beside a join that it had given up: it got another node, and its durable main was refused
		// (daemon.TestGivenUpJoinLeaves).
		{909010042, "mtu=65535,pairs,byhand,room=199136", "good", "107+gk:restart:1.723161425s,107-s3:pause:1.241547176s,122-main0:kill,153-main0:kill"},
		// The end of a node had the first copy take back what the node had not decided, while the second copy was being completed. It waited for ever
		// for the second copy's answer.
		{96, "mtu=65535,log=610040,age=265970h37m10.963712551s,limits=290983,pairs", "good", "30-m1:kill:386.780206ms,41+A:kill"},
		// The answer to an allocation came too late for the switch to let it through. Nobody freed the region (gatekeeper.TestHoldings).
		{134, "log=85892,sync,age=275145h37m0.514879234s,limits=781199,pairs,room=82703", "good", "262-B:kill,982-A:kill"},
		// The Gatekeeper read registers from a switch that took its time, and sent what it asked again before the answers came: it never caught up.
		{83, "mtu=19416,lends,calls=23,room=1717434,throng=22", slow, "3112+m1:cut:2.159199ms"},
		// Calls to a service whose state was lost with its ledger stayed open in the switch, and nobody answered them.
		{352, "mtu=65535,age=505668h56m24.04753103s,jumps", "good", "28-m1:cut:7.747366968s,67+gk:restart:629.287µs,93-log:fill:2.455390492s"},
		// Memory was away, and handlers of policy none failed before they had freed what they had allocated: it is their programs' (the explorer's fault).
		{8097, "mtu=9000,long,lends", "good", "1181-sw:hangup,1190-m1:stop:6.945318501s"},
		// The answers to all clients at once did not fit into a ledger, while a copy of it was lost and no Gatekeeper was there (the explorer's fault).
		{909010451, "limits=702759,pairs,lends,byhand,room=560098,large=35006", slow, "7097-m2:end:195.075089ms,7118-log:fill:2.49116104s"},
		// The filling of a memory blade was cut off between an execution and its regions. The execution stayed at the blade, which could not be filled again.
		{2611510546, "sync,age=301992h2m53.037813492s,pairs,calls=18,room=1048576,large=65536", "lossy", "1019+log:shorten:20.806024ms,1939+m1:end:1.684884ms"},
		// A memory blade had just run again when the other one's power was cut, but what it had sent was late still: nobody could be heard (the explorer's fault).
		{2611510490, "mtu=20462,age=262454h11m53.569478834s,jumps,pairs,long", "good", "49+m1:stop:4.541636985s,57-log:power:2.847539407s,72-B:stop:477.31418ms,180+m2:cut:229.02551ms"},
	} {
		t.Run(fmt.Sprintf("wide-%d-%s-%s", c.seed, c.network, c.point), func(t *testing.T) { again(t, c.seed, c.setting, c.network, c.point, sum) })
	}
	*flagMix = plain
	t.Run("plain", func(t *testing.T) {
		// A memory blade of one copy was away, and a main's ledger there counted as lost: simrack.TestMainAway.
		again(t, 3007, "", "lossy", "60-A:kill,75+m1:pause:7.587648087s,75-main0:cut:9.017447527s,103-B:pause:253.757998ms", sum)
	})
}

// again runs one case.
func again(t *testing.T, seed uint64, setting, network, point string, sum *tally) {
	t.Helper()
	crashes, err := ParseCrashes(point)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseSetting(setting)
	if err != nil {
		t.Fatal(err)
	}
	p, want := program(t, seed, s)
	check(t, p, want, seed, Case{Network: network, Setting: s, Crashes: crashes}, sum)
}
