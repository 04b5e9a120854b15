package composecheck

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

const (
	base = "../../docker-compose.yml"
	tls  = "../../docker-compose.tls.yml"
)

// load reads files as docker compose does, with env in place of the shell's.
func load(t *testing.T, env []string, files ...string) (*types.Project, error) {
	t.Helper()
	options, err := cli.NewProjectOptions(files, cli.WithEnv(env), cli.WithDiscardEnvFile)
	if err != nil {
		t.Fatal(err)
	}
	return options.LoadProject(t.Context())
}

// projects are the ways in which people start it.
func projects(t *testing.T) map[string]*types.Project {
	t.Helper()
	all := map[string]*types.Project{}
	for name, with := range map[string]struct{ env, files []string }{
		"alone":        {nil, []string{base}},
		"another port": {[]string{"HTTP_PORT=9090"}, []string{base}},
		"with TLS":     {[]string{"DOMAIN=crm.example.com"}, []string{base, tls}},
	} {
		project, err := load(t, with.env, with.files...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all[name] = project
	}
	return all
}

// published lists "service host-address:host-port->port/protocol".
func published(p *types.Project) []string {
	var all []string
	for name, service := range p.Services {
		for _, port := range service.Ports {
			all = append(all, fmt.Sprintf("%s %s:%s->%d/%s", name, port.HostIP, port.Published, port.Target, port.Protocol))
		}
	}
	slices.Sort(all)
	return all
}

func TestPortsAreOpenToThisMachineAloneUnlessBehindTLS(t *testing.T) {
	t.Parallel()
	want := map[string][]string{
		"alone":        {"deskcomm 127.0.0.1:8080->8080/tcp"},
		"another port": {"deskcomm 127.0.0.1:9090->9090/tcp"},
		"with TLS":     {"caddy :443->443/tcp", "caddy :443->443/udp", "caddy :80->80/tcp"},
	}
	for name, project := range projects(t) {
		if got := published(project); !slices.Equal(got, want[name]) {
			t.Errorf("%s: published ports %q, want %q", name, got, want[name])
		}
	}
}

func TestTLSNeedsADomainAndSaysSo(t *testing.T) {
	t.Parallel()
	if _, err := load(t, nil, base, tls); err == nil || !strings.Contains(err.Error(), "DOMAIN") {
		t.Errorf("without a domain: %v, want an error that names DOMAIN", err)
	}
	project := projects(t)["with TLS"]
	if got := project.Services["deskcomm"].Environment["DESKCOMM_PUBLIC_URL"]; got == nil || *got != "https://crm.example.com" {
		t.Errorf("DESKCOMM_PUBLIC_URL = %v, want the domain with https", got)
	}
	if command := project.Services["caddy"].Command; !slices.Contains(command, "crm.example.com") || !slices.Contains(command, "deskcomm:8080") {
		t.Errorf("caddy runs %q, want it to lead the domain to deskcomm:8080", command)
	}
}

// The server's address, which its log shows and its health check reads, is the one
// that the host opens.
func TestAddressFollowsThePort(t *testing.T) {
	t.Parallel()
	for name, port := range map[string]string{"alone": "8080", "another port": "9090", "with TLS": "8080"} {
		got := projects(t)[name].Services["deskcomm"].Environment["DESKCOMM_ADDR"]
		if want := "0.0.0.0:" + port; got == nil || *got != want {
			t.Errorf("%s: DESKCOMM_ADDR = %v, want %s", name, got, want)
		}
	}
}

func TestEveryServiceIsConfined(t *testing.T) {
	t.Parallel()
	for name, project := range projects(t) {
		for _, service := range project.Services {
			if !slices.Equal(service.CapDrop, []string{"ALL"}) || !slices.Contains(service.SecurityOpt, "no-new-privileges:true") {
				t.Errorf("%s: %s has cap_drop %v, security_opt %v", name, service.Name, service.CapDrop, service.SecurityOpt)
			}
			if service.Privileged || service.NetworkMode == "host" || service.Pid != "" {
				t.Errorf("%s: %s shares the host's view", name, service.Name)
			}
			if service.Name != "postgres" && !service.ReadOnly {
				t.Errorf("%s: %s has a root filesystem to write to", name, service.Name)
			}
			if service.Logging == nil || service.Logging.Options["max-size"] == "" {
				t.Errorf("%s: the log of %s grows without end", name, service.Name)
			}
		}
	}
}

func TestNothingStartsBeforeWhatItNeeds(t *testing.T) {
	t.Parallel()
	services := projects(t)["alone"].Services
	want := map[string]map[string]string{
		"secrets":  {},
		"postgres": {"secrets": types.ServiceConditionCompletedSuccessfully},
		"deskcomm": {"secrets": types.ServiceConditionCompletedSuccessfully, "postgres": types.ServiceConditionHealthy},
	}
	for name, needs := range want {
		service := services[name]
		if len(service.DependsOn) != len(needs) {
			t.Errorf("%s depends on %v, want %v", name, service.DependsOn, needs)
		}
		for other, condition := range needs {
			if got := service.DependsOn[other].Condition; got != condition {
				t.Errorf("%s waits for %s until %q, want %q", name, other, got, condition)
			}
		}
	}
	if restart := services["secrets"].Restart; restart != "no" {
		t.Errorf("secrets restarts %q, want it to run once", restart)
	}
	if image := services["secrets"].Image; image != services["deskcomm"].Image {
		t.Errorf("secrets runs image %s, want that of deskcomm", image)
	}
	if grace := services["deskcomm"].StopGracePeriod; grace == nil || time.Duration(*grace) <= 30*time.Second {
		t.Errorf("deskcomm gets %v to stop, want more than the 30 s it may take", grace)
	}
}

// What is kept is in volumes with names, and only the service that makes the secrets
// writes to theirs.
func TestStateIsInNamedVolumes(t *testing.T) {
	t.Parallel()
	for name, project := range projects(t) {
		for _, service := range project.Services {
			for _, volume := range service.Volumes {
				if volume.Type != types.VolumeTypeVolume || project.Volumes[volume.Source].Name == "" {
					t.Errorf("%s: %s mounts %s %q, want a volume with a name", name, service.Name, volume.Type, volume.Source)
				}
				if volume.Source == "secrets" && volume.ReadOnly == (service.Name == "secrets") {
					t.Errorf("%s: %s mounts the secrets read-only: %t", name, service.Name, volume.ReadOnly)
				}
			}
		}
	}
}
