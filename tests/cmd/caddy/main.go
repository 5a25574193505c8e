// Command caddy is the tests' own Caddy: the standard modules and Fairway's.
// Users build theirs with xcaddy.sh.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/fairway-edge/fairway/caddymodule"
)

func main() { caddycmd.Main() }
