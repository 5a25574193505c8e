package ollama

import "testing"

func TestLowestVersion(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		in   []string
		want string
	}{
		{"none", nil, ""},
		{"only noise", []string{"", "dev", "1.2", "1.2.3.4", "1..2", "-1.2.3", "1.2.x", "9999999.0.0"}, ""},
		{"numeric, not textual", []string{"0.32.15", "0.6.4", "0.10.0"}, "0.6.4"},
		{"noise is passed over", []string{"main", "0.32.15"}, "0.32.15"},
		{"candidate and v", []string{"v0.33.0-rc2", "0.34.0+cu12"}, "0.33.0"},
		{"a build without version says nothing", []string{"0.0.0", "0.32.15", "0.0.0"}, "0.32.15"},
		{"unless it is alone", []string{"0.0.0", "dev"}, "0.0.0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := LowestVersion(tt.in); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestVersionAtLeast(t *testing.T) {
	t.Parallel()
	tests := []struct {
		v, min string
		want   bool
	}{
		{"0.13.3", "0.13.3", true},
		{"0.13.2", "0.13.3", false},
		{"0.9.9", "0.10.0", false},
		{"1.0.0", "0.99.99", true},
		{"0.13.3-rc1", "0.13.3", true},
		{"0.1.0", "", true},
		{"", "0.13.3", true},
		{"dev", "0.13.3", true},
		{"0.0.0", "0.13.3", true},
	}
	for _, tt := range tests {
		if got := ParseVersion(tt.v).AtLeast(ParseVersion(tt.min)); got != tt.want {
			t.Errorf("%q at least %q: %v", tt.v, tt.min, got)
		}
	}
}
