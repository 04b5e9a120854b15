# `make` lists the targets. Everything built for them is in bin/ and .cache/.
.DEFAULT_GOAL := help
.PHONY: help run build test generate fmt lint verify verify-code verify-generated bench bench-peers soak cover e2e screenshots templ FORCE

CACHE := .cache/bin
TOOLS := $(CACHE)/.tools
WITHPG := $(CACHE)/withpg
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
CODE := ./... ./.ci/withpg # a wildcard skips folders with a dot
GENERATED := db/schema.sql web/api/testdata/openapi.json README.md README.pt-BR.md $(wildcard web/admin/*.templ web/admin/*_templ.go web/admin/testdata/dlq-*)

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## Build and serve, with a private Postgres in ./data unless DATABASE_URL is set
	@.ci/deps run
	@[ -x bin/deskcomm ] || echo "Compiling; the first time takes a minute or two."
	@$(MAKE) --no-print-directory build
	@exec bin/deskcomm serve

build: ## Build bin/deskcomm, one static binary
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION)" -o bin/deskcomm .

test: $(WITHPG) ## Run all tests against a private Postgres
	@.ci/deps test
	CGO_ENABLED=1 $(WITHPG) go test -race -shuffle=on -count=1 -timeout 20m ./...

e2e: $(WITHPG) ## Run the browser tests alone
	@.ci/deps test
	CGO_ENABLED=1 $(WITHPG) go test -race -shuffle=on -count=1 ./app -run 'TestBrowser|TestConsole'

screenshots: $(WITHPG) ## Picture every page of the console in each language, theme and width, into .cache/screenshots
	@.ci/deps test
	@rm -rf .cache/screenshots
	CGO_ENABLED=1 $(WITHPG) go test -count=1 ./app -run TestBrowserPages -screenshots '$(CURDIR)/.cache/screenshots'

templ: $(TOOLS)
	$(CACHE)/templ fmt -log-level error -prettier-command none web/admin
	$(CACHE)/templ generate -log-level error -path web/admin

generate: $(WITHPG) templ ## Refresh the generated files
	@.ci/deps generate
	$(WITHPG) go test -count=1 ./db -run TestSchemaDump -update
	$(WITHPG) go test -count=1 ./web/api -run TestOpenAPIGolden -update
	$(WITHPG) go test -count=1 ./web/admin -run LooksAsItDid -update
	$(WITHPG) go test -count=1 ./app -run TestReadmeSettings -update

fmt: $(TOOLS) ## Format the code and bring it to the current Go
	go fix $(CODE)
	$(CACHE)/templ fmt -log-level error -prettier-command none web/admin
	$(CACHE)/golangci-lint fmt $(CODE)

lint: $(TOOLS) ## Run the linters
	$(CACHE)/golangci-lint run $(CODE)
	go test -tags lint -count=1 -run TestLint ./app
	go -C .ci/composecheck test -count=1 ./...
	go -C bench vet ./...
	@if command -v shellcheck >/dev/null; then shellcheck .ci/deps .ci/run; fi

verify: verify-code verify-generated ## Check that nothing is stale: modules, vet, format, go fix, dead code, generated files

verify-code: $(TOOLS)
	go mod tidy -diff
	go vet $(CODE)
	@out=$$($(CACHE)/gofumpt -l .; go fix -diff $(CODE)); [ -z "$$out" ] || { echo "$$out"; echo "run make fmt"; exit 1; } >&2
	@out=$$($(CACHE)/deadcode -test $(CODE)); [ -z "$$out" ] || { echo "$$out"; exit 1; } >&2

# What is generated anew must be what was there, committed or not.
verify-generated:
	@for f in $(GENERATED); do mkdir -p .cache/was/$$(dirname $$f) && cp $$f .cache/was/$$f || exit 1; done
	@$(MAKE) --no-print-directory generate
	@for f in $(GENERATED); do diff -u .cache/was/$$f $$f || { echo "run make generate and commit the result" >&2; exit 1; }; done

bench: $(WITHPG) ## Measure emission, relay, claiming with settling, fairness, and the list of dead letters
	@.ci/deps generate
	$(WITHPG) -durable go test -run '^$$' -bench . -skip FairnessP95 -count=3 ./db
	$(WITHPG) -durable go test -run '^$$' -bench FairnessP95 ./db
	$(WITHPG) -durable go test -run '^$$' -bench . ./web/admin

KILLS ?= 200
soak: $(WITHPG) ## Kill workers under load two hundred times (KILLS), and try the properties of the bus at length
	@.ci/deps test
	CGO_ENABLED=1 $(WITHPG) go test -race -count=1 -v -timeout 2h ./db -run 'TestKilledWorkers|TestProperty' -kills $(KILLS) -rapid.checks 500
	CGO_ENABLED=1 go test -race -count=1 -v ./bus/bustest -run TestProperty -rapid.checks 20000

bench-peers: ## Measure deskcomm, other queues and the limits of Postgres in turns, into .cache/peers; takes an hour
	@.ci/deps generate
	PEERS_BUILD='$(CURDIR)/.cache/peers' bench/run.sh $(or $(REPS),3)

cover: $(WITHPG) ## Measure what the tests reach, into .cache/cover.out
	@.ci/deps generate
	$(WITHPG) go test -count=1 -coverpkg=./... -coverprofile=.cache/cover.out ./...
	@go tool cover -func=.cache/cover.out | tail -n 1

$(TOOLS): .ci/tools.mod .ci/tools.sum
	@echo "Building the linters of .ci/tools.mod, once; it takes minutes."
	@CGO_ENABLED=0 go build -modfile=.ci/tools.mod -o $(CACHE)/ tool
	@touch $@

$(WITHPG): FORCE
	@CGO_ENABLED=0 go build -o $@ ./.ci/withpg

FORCE:
