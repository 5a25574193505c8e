package edge

// Device is what a machine can do, as the cloud's compiler of bundles takes it. Its members are frozen: the server refuses others.
type Device struct {
	DeviceID        string           `json:"device_id"`
	Silicon         string           `json:"silicon"`
	RAMMB           int              `json:"ram_mb"` // above 0
	VRAMMB          *int             `json:"vram_mb"`
	HasNPU          bool             `json:"has_npu"`
	DiskGB          *int             `json:"disk_gb"`
	Removable       bool             `json:"removable"`
	MediaStore      *string          `json:"media_store"`
	InstalledAssets []InstalledAsset `json:"installed_assets"`
}

// InstalledAsset is one thing that was installed from a bundle.
type InstalledAsset struct {
	Capability  Capability `json:"capability"`
	Model       string     `json:"model"`
	QualityTier Tier       `json:"quality_tier"`
	Adapter     *string    `json:"adapter"`
	Runtime     *string    `json:"runtime"`
}
