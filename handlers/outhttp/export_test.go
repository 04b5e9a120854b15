package outhttp

// CloseIdle closes the connections that are kept for reuse.
func (c *Client) CloseIdle() { c.transport.CloseIdleConnections() }
