// Package composecheck reads the compose files of the repository with the loader that
// Docker Compose itself uses. It is a module of its own: what the loader requires stays
// out of the program's go.mod.
package composecheck
