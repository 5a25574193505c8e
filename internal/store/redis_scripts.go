package store

import (
	"embed"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// op is a script, by the name of its file.
type op string

const (
	opEpoch       op = "epoch"
	opRegister    op = "register"
	opNode        op = "node"
	opState       op = "state"
	opFence       op = "fence"
	opIssue       op = "issue"
	opBeat        op = "beat"
	opStrays      op = "strays"
	opPublish     op = "publish"
	opRevoke      op = "revoke"
	opUnrevoke    op = "unrevoke"
	opRevocations op = "revocations"
	opMinPGN      op = "min_pgn"
	opDrain       op = "drain"
	opRedeem      op = "redeem"
	opRemark      op = "remark"
	opRepublish   op = "republish"
	opClaim       op = "claim"
	opProbe       op = "probe"
	opMeet        op = "meet"
)

var allOps = []op{
	opEpoch, opRegister, opNode, opState, opFence, opIssue, opBeat, opStrays, opPublish, opRevoke, opUnrevoke, opRevocations, opMinPGN,
	opDrain, opRedeem, opRemark, opRepublish, opClaim, opProbe, opMeet,
}

//go:embed lua/*.lua
var sources embed.FS

const (
	// serverClock makes now the server's own clock: the only one that all gateways share.
	serverClock = "local clock = redis.call('TIME')\nlocal now = clock[1] * 1000 + math.floor(clock[2] / 1000)\n"
	// callersClock makes now the last argument, for tests.
	callersClock = "local now = tonumber(table.remove(ARGV))\n"

	// forgetGateway is how long a gateway may be silent before it and its sessions are forgotten.
	forgetGateway = 24 * time.Hour
)

// constants are what the scripts share with this package.
var constants = fmt.Sprintf("local owner_ttl, forget_gateway, max_watermark, max_number = %d, %d, %d, %d\n"+
	"local register_every, register_burst, max_restored = %d, %d, %d\n",
	OwnerTTL.Milliseconds(), forgetGateway.Milliseconds(), MaxWatermark.Milliseconds(), uint64(maxNumber),
	registerEvery.Milliseconds(), registerBurst, maxRestored)

// loadScripts completes the scripts. The first line makes them ones that write, so that the server looks before the first
// command whether it may: a replica, or a server that is out of memory, refuses a script as a whole, also one that only
// reads: what it would read may be old.
func loadScripts(clock string) map[op]*redis.Script {
	prelude := read("prelude")
	all := make(map[op]*redis.Script, len(allOps))
	for _, o := range allOps {
		all[o] = redis.NewScript("#!lua\n" + clock + constants + prelude + read(o))
	}
	return all
}

func read(name op) string {
	text, err := sources.ReadFile("lua/" + string(name) + ".lua")
	if err != nil {
		panic(err) // it is part of this program
	}
	return string(text)
}

// refusals are the codes with which scripts say no.
var refusals = map[string]error{
	"disabled":              ErrDisabled,
	"exhausted":             ErrExhausted,
	"full":                  ErrFull,
	"not_ready":             ErrNotReady,
	"rate_limited":          ErrRateLimited,
	"revoked":               ErrRevoked,
	"stale":                 ErrStale,
	"stale_epoch":           ErrStaleEpoch,
	"stale_projection":      ErrStaleProjection,
	"token_expired":         ErrTokenExpired,
	"token_spent":           ErrTokenSpent,
	"watermark_implausible": ErrWatermarkImplausible,
}
