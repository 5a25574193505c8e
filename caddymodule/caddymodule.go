// Package caddymodule is what Caddy loads of Fairway: the app `fairway`, the
// handler `http.handlers.fairway`, the admin routes `admin.api.fairway` and the
// commands `caddy fairway …`. It is glue: what a request goes through is in
// internal/gateway, which knows nothing of Caddy.
//
//	app.go                the app: options, and what happens when in a config's life
//	handler.go            the HTTP handler of a site
//	accesslog.go          log fields, placeholders, and the line without secrets
//	caddyfile*.go         the Caddyfile's words; each block's type parses its own
//	values.go             placeholders, and what a value may be
//	hubpool.go            the hub that outlives configs, and the process's memory store
//	listen.go             the UDP address and who else wants it
//	identity.go           the gateway's certificate: issued, or from files
//	authority.go          the built-in CA
//	secrets.go            keys that the gateway keeps, keys that callers show
//	slots.go profiles.go  credentials for providers, and how providers are used
//	audit.go              what becomes of each lease, to a file or the log
//	persist.go            the memory store's records in Caddy's storage
//	embedded.go           a node inside this process
//	currentlog.go         its logger, which follows the config that counts
//	admin*.go metrics.go  what the hubs show; census.go counts for both
//	command*.go           `caddy fairway …`
//
// # A config's life
//
// Provision takes memory: the hub from a pool, by its listen address. It opens no
// socket and writes nothing, because `caddy validate` runs it beside a running
// server. Start makes what is missing (CA, keys), puts this config's settings on
// the hub's stack and opens the socket, if it is the first. Stop does nothing:
// when the process ends it may run before the requests are through. Cleanup takes
// the settings off by identity, so that after a failed reload those of the config
// before count again, and gives the hub back; the last one to do so drains it.
//
// A handler may serve requests long after its own Cleanup. It therefore keeps the
// hub and the settings that it was made with, and nobody sets them to nil.
package caddymodule
