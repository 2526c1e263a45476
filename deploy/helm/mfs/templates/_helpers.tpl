{{- define "mfs.name" -}}
{{- if contains "mfs" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-mfs" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "mfs.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Labels of one part: (dict "root" $ "part" "daemon"). */ -}}
{{- define "mfs.selector" -}}
app.kubernetes.io/name: mfs
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "mfs.labels" -}}
{{ include "mfs.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- /* The folder on the host of the socket that mfsctl asks: no other pod mounts it. */ -}}
{{- define "mfs.controlPath" -}}
{{ .Values.daemon.runtimePath }}-control
{{- end }}

{{- /* With a memory limit that all programs fit in: their segments are charged to the daemon. */ -}}
{{- define "mfs.daemonResources" -}}
{{- $clients := dig "socket" "clients_max" 256 .Values.config | int }}
{{- $limits := dict "memory" (printf "%dMi" (add 96 (mul 3 $clients))) }}
{{- toYaml (mergeOverwrite (dict "limits" $limits) (deepCopy .Values.daemon.resources)) }}
{{- end }}

{{- define "mfs.coordinatorHost" -}}
{{ include "mfs.name" . }}-coordinator.{{ .Release.Namespace }}.svc
{{- end }}

{{- /* HOST:PORT of every etcd member, as a JSON list. */ -}}
{{- define "mfs.etcdEndpoints" -}}
{{- $found := list }}
{{- if .Values.coordinator.enabled }}
{{- if .Values.etcd.endpoints }}
{{- $found = .Values.etcd.endpoints }}
{{- else if .Values.etcd.enabled }}
{{- range $number := until (int .Values.etcd.replicas) }}
{{- $found = append $found (printf "%s-etcd-%d.%s-etcd.%s.svc:2379" (include "mfs.name" $) $number (include "mfs.name" $) $.Release.Namespace) }}
{{- end }}
{{- end }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{- define "mfs.metricsOpen" -}}
{{- if not (has .Values.daemon.metricsAddress (list "127.0.0.1" "[::1]" "localhost")) }}yes{{ end }}
{{- end }}

{{- define "mfs.webOpen" -}}
{{- if ne .Values.coordinator.webAddress "127.0.0.1" }}yes{{ end }}
{{- end }}

{{- define "mfs.gatewayMetricsOpen" -}}
{{- if not (has .Values.gateway.metricsAddress (list "127.0.0.1" "[::1]" "localhost")) }}yes{{ end }}
{{- end }}

{{- define "mfs.daemonTls" -}}
{{- if or .Values.daemon.tls.secretName .Values.daemon.tls.hostPath }}yes{{ end }}
{{- end }}

{{- define "mfs.etcdInside" -}}
{{- if and .Values.coordinator.enabled .Values.etcd.enabled (not .Values.etcd.endpoints) }}yes{{ end }}
{{- end }}

{{- /* vllm.nixl; in YAML a bare off is false. */ -}}
{{- define "mfs.nixl" -}}
{{ ternary "off" .Values.vllm.nixl (eq (toString .Values.vllm.nixl) "false") }}
{{- end }}

{{- define "mfs.vllmNamed" -}}
{{- $found := list }}
{{- range .Values.vllm.env }}{{ $found = append $found .name }}{{ end }}
{{- toJson $found }}
{{- end }}

{{- /* What NIXL in vLLM needs, as a JSON list of variables: what mfs-run would set, and where its peers reach it. */ -}}
{{- define "mfs.vllmNixl" -}}
{{- $nixl := include "mfs.nixl" . }}
{{- $found := list }}
{{- if ne $nixl "off" }}
{{- $found = append $found (dict "name" "VLLM_NIXL_SIDE_CHANNEL_HOST" "valueFrom" (dict "fieldRef" (dict "fieldPath" "status.podIP"))) }}
{{- if eq $nixl "adapter" }}
{{- /* without MFS_MODE the wheel leaves Python as it is */ -}}
{{- $found = concat $found (list (dict "name" "MFS_NIXL" "value" "1") (dict "name" "MFS_MODE" "value" "enforce")) }}
{{- else }}
{{- $found = concat $found (list (dict "name" "NIXL_PLUGIN_DIR" "value" "/mfs/nixl_plugins") (dict "name" "MFS_NIXL_BACKEND" "value" $nixl)) }}
{{- end }}
{{- end }}
{{- $named := include "mfs.vllmNamed" . | fromJsonArray }}
{{- $left := list }}
{{- range $found }}{{ if not (has .name $named) }}{{ $left = append $left . }}{{ end }}{{ end }}
{{- toJson $left }}
{{- end }}

{{- /* Classes of libraries by the shipped profile that packets are marked by, as a JSON list of variables; none that
vllm.env names, nor one whose library goes by another that it names. MFS_SET_CLASSES: who chose them. */ -}}
{{- define "mfs.vllmClasses" -}}
{{- $found := list }}
{{- $ours := list }}
{{- $profile := dig "wire" "profile" "" .Values.config }}
{{- if and $profile (not .Values.fabricPolicy) }}
{{- $named := include "mfs.vllmNamed" . | fromJsonArray }}
{{- $classes := .Files.Get (printf "profiles/%s.yaml" $profile) | fromYaml }}
{{- range dig (ternary "infiniband" "roce" .Values.vllm.infiniband) list $classes }}
{{- if not (or (has .name $named) (has (.unless | default "") $named)) }}
{{- $found = append $found (dict "name" .name "value" .value) }}
{{- $ours = append $ours .name }}
{{- end }}
{{- end }}
{{- if and $ours (not (has "MFS_SET_CLASSES" $named)) }}
{{- $found = append $found (dict "name" "MFS_SET_CLASSES" "value" (join " " $ours)) }}
{{- end }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{- /* What cannot work is refused here, with the remedy; the schema has checked each value by itself. */ -}}
{{- define "mfs.check" -}}
{{- range $key := list "path" "control" }}
{{- if hasKey ($.Values.config.socket | default dict) $key }}
{{- fail (printf "config.socket.%s: the chart sets it; set daemon.runtimePath, the folder on the host" $key) }}
{{- end }}
{{- end }}
{{- $group := (.Values.config.socket | default dict).group }}
{{- if and (kindIs "string" $group) (not (regexMatch "^[0-9]*$" $group)) }}
{{- fail (printf "config.socket.group = %s: use the group's number; the image does not know your hosts' names" $group) }}
{{- end }}
{{- if hasKey (.Values.config.cluster | default dict) "serve_status" }}
{{- fail "config.cluster.serve_status: the daemon's pod mounts no other folder; set daemon.engineStatusPath, the folder on the host" }}
{{- end }}
{{- if has .Values.daemon.engineStatusPath (list .Values.daemon.runtimePath (include "mfs.controlPath" .)) }}
{{- fail "daemon.engineStatusPath: engines write there; name a folder of its own, not that of the daemon's sockets" }}
{{- end }}
{{- if and .Values.coordinator.enabled (gt (int .Values.coordinator.replicas) 1) (not .Values.etcd.enabled) (not .Values.etcd.endpoints) }}
{{- fail (printf "coordinator.replicas = %d: several coordinators elect a leader through etcd; set etcd.enabled=true, etcd.endpoints, or coordinator.replicas=1" (int .Values.coordinator.replicas)) }}
{{- end }}
{{- if and .Values.fabricPolicy (not (dig "wire" "profile" "" .Values.config)) }}
{{- fail "fabricPolicy: set config.wire.profile, too, the profile of it that packets are marked by" }}
{{- end }}
{{- if and .Values.podMonitor.enabled (not (include "mfs.metricsOpen" .)) }}
{{- fail (printf "podMonitor.enabled: Prometheus cannot reach daemon.metricsAddress = %s; set daemon.metricsAddress=podIP (and let your firewall keep others off that port of the nodes)" .Values.daemon.metricsAddress) }}
{{- end }}
{{- with .Values.daemon.tls }}{{ if and .secretName .hostPath }}
{{- fail "daemon.tls: set secretName (one certificate for all nodes) or hostPath (each node its own), not both" }}
{{- end }}{{ end }}
{{- if and .Values.coordinator.enabled (ne (empty .Values.coordinator.tls.secretName) (empty (include "mfs.daemonTls" .))) }}
{{- fail "mutual TLS needs coordinator.tls.secretName and one of daemon.tls; set both, or none of them" }}
{{- end }}
{{- if and (not (has (include "mfs.nixl" .) (list "off" "adapter"))) (has "NIXL_PLUGIN_DIR" (include "mfs.vllmNamed" . | fromJsonArray)) }}
{{- fail (printf "vllm.env names NIXL_PLUGIN_DIR, which vllm.nixl=%s sets; name that folder in MFS_NIXL_PLUGIN_DIR" (include "mfs.nixl" .)) }}
{{- end }}
{{- with .Values.gateway }}{{ if .enabled }}
{{- if and (not .engines.selector) (not .config.replicas) }}
{{- fail "gateway.enabled: name the engines: gateway.engines.selector (labels of their pods), or gateway.config.replicas" }}
{{- end }}
{{- if and .engines.selector .config.replicas }}
{{- fail "gateway: set engines.selector or config.replicas, not both" }}
{{- end }}
{{- range $key, $value := dict "listen" "port" "ext_proc" "extProc" "metrics" "metricsAddress and gateway.metricsPort" }}
{{- if hasKey $.Values.gateway.config $key }}
{{- fail (printf "gateway.config.%s: the chart sets it; set gateway.%s" $key $value) }}
{{- end }}
{{- end }}
{{- if and $.Values.podMonitor.enabled (not (include "mfs.gatewayMetricsOpen" $)) }}
{{- fail (printf "podMonitor.enabled: Prometheus cannot reach gateway.metricsAddress = %s; set gateway.metricsAddress=0.0.0.0 (and let a NetworkPolicy keep others off that port)" .metricsAddress) }}
{{- end }}
{{- if and .inferencePool.enabled (not (and .extProc.enabled .engines.selector)) }}
{{- fail "gateway.inferencePool.enabled: set gateway.extProc.enabled=true, which the pool asks, and gateway.engines.selector, its pods" }}
{{- end }}
{{- if and .extProc.tls.secretName (not .extProc.enabled) }}
{{- fail "gateway.extProc.tls.secretName: set gateway.extProc.enabled=true, too" }}
{{- end }}
{{- if and .config.predict (not .claim) }}
{{- fail "gateway.config.predict: set gateway.claim, a PersistentVolumeClaim for its files below /var/lib/mfs; the pod has no other place for them" }}
{{- end }}
{{- if and (dig "predict" "record" "" .config) (gt (int .replicas) 1) }}
{{- fail (printf "gateway.replicas = %d: each would write gateway.config.predict.record; set 1, or leave record out" (int .replicas)) }}
{{- end }}
{{- end }}{{ end }}
{{- if and .Values.etcd.tls.secretName (not .Values.etcd.endpoints) }}
{{- fail "etcd.tls.secretName is for an etcd of your own: set etcd.endpoints, too (the chart's etcd is fenced by its NetworkPolicy)" }}
{{- end }}
{{- end }}

{{- /* One table's keys and values; a value in JSON is one in TOML. */ -}}
{{- define "mfs.tomlKeys" -}}
{{- range $key, $value := . }}
{{- if not (or (kindIs "map" $value) (and (kindIs "slice" $value) (kindIs "map" (first (concat $value (list "")))))) }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- end }}

{{- /* A configuration as TOML: top keys, then [table], [table."NAME"] and [[array of tables]]. */ -}}
{{- define "mfs.toml" -}}
{{- include "mfs.tomlKeys" . | trimPrefix "\n" }}
{{- range $table, $keys := . }}
{{- if kindIs "map" $keys }}
{{- if include "mfs.tomlKeys" $keys }}

[{{ $table }}]
{{- include "mfs.tomlKeys" $keys }}
{{- end }}
{{- range $name, $inner := $keys }}
{{- if kindIs "map" $inner }}

[{{ $table }}.{{ toJson $name }}]
{{- include "mfs.tomlKeys" $inner }}
{{- end }}
{{- end }}
{{- else if kindIs "slice" $keys }}
{{- range $entry := $keys }}
{{- if kindIs "map" $entry }}

[[{{ $table }}]]
{{- include "mfs.tomlKeys" $entry }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* mfsd.toml: what the chart knows, and over it what `config` says. */ -}}
{{- define "mfs.config" -}}
{{- $cluster := dict }}
{{- $coordinator := dict "listen" (printf "[::]:%d" (int .Values.coordinator.port)) "web" (printf "%s:%d" .Values.coordinator.webAddress (int .Values.coordinator.webPort)) }}
{{- if .Values.coordinator.enabled }}
{{- $_ := set $cluster "coordinators" (list (printf "%s:%d" (include "mfs.coordinatorHost" .) (int .Values.coordinator.port))) }}
{{- $_ := set $coordinator "etcd" (include "mfs.etcdEndpoints" . | fromJsonArray) }}
{{- end }}
{{- if include "mfs.daemonTls" . }}
{{- $_ := merge $cluster (dict "ca" "/etc/mfs-tls/ca.crt" "certificate" "/etc/mfs-tls/tls.crt" "key" "/etc/mfs-tls/tls.key") }}
{{- if .Values.coordinator.enabled }}
{{- $_ := set $cluster "server_name" (include "mfs.coordinatorHost" .) }}
{{- end }}
{{- end }}
{{- with .Values.daemon.engineStatusPath }}
{{- $_ := set $cluster "serve_status" (list .) }}
{{- end }}
{{- if .Values.coordinator.tls.secretName }}
{{- $_ := merge $coordinator (dict "ca" "/etc/mfs-tls/ca.crt" "certificate" "/etc/mfs-tls/tls.crt" "key" "/etc/mfs-tls/tls.key") }}
{{- end }}
{{- if .Values.etcd.tls.secretName }}
{{- $_ := merge $coordinator (dict "etcd_ca" "/etc/mfs-etcd-tls/ca.crt" "etcd_certificate" "/etc/mfs-etcd-tls/tls.crt" "etcd_key" "/etc/mfs-etcd-tls/tls.key") }}
{{- end }}
{{- $known := dict "cluster" $cluster "coordinator" $coordinator
  "socket" (dict "path" (printf "%s/mfsd.sock" .Values.daemon.runtimePath) "control" (printf "%s/mfsd.sock" (include "mfs.controlPath" .)))
  "metrics" dict }}
{{- if ne .Values.daemon.metricsAddress "podIP" }}
{{- $_ := set $known.metrics "listen" (printf "%s:%d" .Values.daemon.metricsAddress (int .Values.daemon.metricsPort)) }}
{{- end }}
{{- if .Values.fabricPolicy }}
{{- $_ := set $known "wire" (dict "policy_file" "/etc/mfs/policy.toml") }}
{{- end }}
{{- include "mfs.toml" (mergeOverwrite $known (deepCopy .Values.config)) }}
{{- end }}

{{- /* gateway.toml: what the chart knows, and over it what `gateway.config` says. */ -}}
{{- define "mfs.gatewayConfig" -}}
{{- $gateway := .Values.gateway }}
{{- $known := dict "listen" (printf "0.0.0.0:%d" (int $gateway.port)) "lame_duck_s" 5 }}
{{- $_ := set $known "metrics" (dict "listen" (printf "%s:%d" $gateway.metricsAddress (int $gateway.metricsPort))) }}
{{- with $gateway.engines.selector }}
{{- $url := printf "http://%s-engines.%s.svc:%d" (include "mfs.name" $) $.Release.Namespace (int $gateway.engines.port) }}
{{- $_ := set $known "replicas" (list (dict "url" $url "each_address" true)) }}
{{- end }}
{{- if $gateway.extProc.enabled }}
{{- $picker := dict "listen" (printf "0.0.0.0:%d" (int $gateway.extProc.port)) }}
{{- if $gateway.extProc.tls.secretName }}
{{- $_ := merge $picker (dict "certificate" "/etc/mfs-tls/tls.crt" "key" "/etc/mfs-tls/tls.key") }}
{{- end }}
{{- $_ := set $known "ext_proc" $picker }}
{{- end }}
{{- include "mfs.toml" (mergeOverwrite $known (deepCopy $gateway.config)) }}
{{- end }}
