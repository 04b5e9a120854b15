package outhttp

import (
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// brokenConn fails to write, and can be closed.
type brokenConn struct{ net.Conn }

var errBroken = errors.New("broken pipe")

func (brokenConn) Write([]byte) (int, error) { return 0, errBroken }
func (brokenConn) Close() error              { return nil }

func TestAFailedWriteWaitsForTheAnswerThatExplainsIt(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*conn){
		"until the connection is closed": func(c *conn) { _ = c.Close() },
		"for a while":                    func(*conn) { <-time.After(brokenPipeGrace) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newConn(brokenConn{})
				result := make(chan error, 1)
				go func() {
					_, err := c.Write([]byte("x"))
					result <- err
				}()
				synctest.Wait()
				select {
				case err := <-result:
					t.Fatalf("Write = %v at once, want it to wait", err)
				default:
				}
				end(c)
				synctest.Wait()
				select {
				case err := <-result:
					if !errors.Is(err, errBroken) {
						t.Errorf("Write = %v, want the error of the connection", err)
					}
				default:
					t.Error("Write still waits")
				}
			})
		})
	}
}
