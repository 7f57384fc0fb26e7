{{/* Containers of the DaemonSet. */}}

{{- define "shardwell.env" -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Of containers that use sockets and files only. */}}
{{- define "shardwell.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "shardwell.nodeContainer" -}}
{{- $listen := ternary "[::]" .Values.listen (eq .Values.listen "::") -}}
- name: node
  image: {{ include "shardwell.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - node
    {{- if include "shardwell.readsLabels" . }}
    - --config=/etc/shardwell/effective/node.yaml
    {{- else }}
    - --config=/etc/shardwell/config/node.yaml
    {{- end }}
    - --name=$(NODE_NAME)
    {{- range .Values.cache }}
    - --cache-dir={{ .path }}{{ with get . "size" }}={{ . }}{{ end }}
    {{- end }}
    - --bind={{ $listen }}:{{ .Values.ports.gossip }}
    - --peer-bind={{ $listen }}:{{ .Values.ports.peer }}
    - --metrics-bind={{ $listen }}:{{ .Values.ports.metrics }}
    - --advertise=$(POD_IP)
    - --join={{ include "shardwell.seeds" . }}.{{ .Release.Namespace }}.svc
    - --secret-file=/etc/shardwell/keyring/secret
    - --control-socket={{ .Values.runDir }}/control.sock
    {{- if ne .Values.keeper.mode "None" }}
    - --keeper-socket={{ .Values.runDir }}/keeper.sock
    {{- end }}
    {{- with .Values.origin.endpoint }}
    - --endpoint={{ . }}
    {{- end }}
    {{- with .Values.origin.region }}
    - --region={{ . }}
    {{- end }}
    {{- if .Values.origin.credentialsSecret }}
    - --credentials-file=/etc/shardwell/credentials/credentials
    {{- end }}
    {{- if .Values.origin.caConfigMap }}
    - --ca-file=/etc/shardwell/ca/ca.crt
    {{- end }}
    {{- range .Values.origin.dirs }}
    - --origin-dir={{ . }}
    {{- end }}
  env: {{- include "shardwell.env" . | nindent 4 }}
  ports:
    - {name: gossip, containerPort: {{ .Values.ports.gossip }}, protocol: TCP}
    - {name: gossip-udp, containerPort: {{ .Values.ports.gossip }}, protocol: UDP}
    - {name: peer, containerPort: {{ .Values.ports.peer }}, protocol: TCP}
    - {name: metrics, containerPort: {{ .Values.ports.metrics }}, protocol: TCP}
  # A large cache may take its time to open: that is no reason to be killed.
  startupProbe:
    httpGet: {path: /healthz, port: metrics}
    periodSeconds: 5
    timeoutSeconds: 5
    failureThreshold: 120
  livenessProbe:
    httpGet: {path: /healthz, port: metrics}
    periodSeconds: 20
    timeoutSeconds: 10
    failureThreshold: 6
  readinessProbe:
    httpGet: {path: /readyz, port: metrics}
    periodSeconds: 5
    timeoutSeconds: 5
    failureThreshold: 3
  resources: {{- toYaml .Values.resources | nindent 4 }}
  securityContext:
    # FUSE mounts that reach other Pods: Kubernetes lets privileged containers only.
    privileged: true
    readOnlyRootFilesystem: true
  volumeMounts:
    {{- range $i, $dir := .Values.cache }}
    - {name: cache-{{ $i }}, mountPath: {{ $dir.path }}}
    {{- end }}
    {{- range $i, $dir := .Values.origin.dirs }}
    - {name: origin-{{ $i }}, mountPath: {{ $dir }}, readOnly: true, mountPropagation: HostToContainer}
    {{- end }}
    # What it mounts is shown to Pods by the driver: it sees no Pod's folders itself.
    - {name: plugin, mountPath: {{ .Values.kubeletDir }}/plugins/csi.shardwell.io, mountPropagation: Bidirectional}
    - {name: run, mountPath: {{ .Values.runDir }}}
    - {name: keyring, mountPath: /etc/shardwell/keyring, readOnly: true}
    {{- if include "shardwell.readsLabels" . }}
    - {name: effective, mountPath: /etc/shardwell/effective, readOnly: true}
    {{- else }}
    - {name: config, mountPath: /etc/shardwell/config, readOnly: true}
    {{- end }}
    {{- if .Values.origin.credentialsSecret }}
    - {name: credentials, mountPath: /etc/shardwell/credentials, readOnly: true}
    {{- end }}
    {{- if .Values.origin.caConfigMap }}
    - {name: ca, mountPath: /etc/shardwell/ca, readOnly: true}
    {{- end }}
{{- end }}

{{- define "shardwell.csiContainer" -}}
- name: csi
  image: {{ include "shardwell.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - csi
    - --config=/etc/shardwell/config/csi.yaml
    - --endpoint=unix://{{ .Values.kubeletDir }}/plugins/csi.shardwell.io/csi.sock
    - --node-id=$(NODE_NAME)
    - --kubelet-dir={{ .Values.kubeletDir }}
    - --control-socket={{ .Values.runDir }}/control.sock
    {{- if not .Values.registrar.enabled }}
    - --self-register
    {{- end }}
    {{- if .Values.startupTaint.enabled }}
    - --startup-taint
    {{- end }}
  env: {{- include "shardwell.env" . | nindent 4 }}
  {{- if .Values.livenessProbe.enabled }}
  ports:
    - {name: healthz, containerPort: {{ .Values.livenessProbe.port }}, protocol: TCP}
  # It asks whether volumes can be mounted, which the daemon has its part in: a driver is restarted late.
  livenessProbe:
    httpGet: {path: /healthz, port: healthz}
    periodSeconds: 20
    timeoutSeconds: 10
    failureThreshold: 15
  readinessProbe:
    httpGet: {path: /healthz, port: healthz}
    periodSeconds: 5
    timeoutSeconds: 5
    failureThreshold: 3
  {{- end }}
  resources: {{- toYaml .Values.csi.resources | nindent 4 }}
  securityContext:
    # It binds the daemon's mounts to where the kubelet wants them.
    privileged: true
    readOnlyRootFilesystem: true
  volumeMounts:
    # The driver's socket and that of its registration lie here as well.
    - {name: kubelet, mountPath: {{ .Values.kubeletDir }}, mountPropagation: Bidirectional}
    - {name: run, mountPath: {{ .Values.runDir }}}
    - {name: config, mountPath: /etc/shardwell/config, readOnly: true}
    {{- if .Values.startupTaint.enabled }}
    {{- include "shardwell.tokenMount" . | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "shardwell.keeperContainer" -}}
- name: keeper
  image: {{ include "shardwell.keeperImage" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [/usr/bin/shardwell-keeper]
  args:
    - --socket={{ .Values.runDir }}/keeper.sock
    - --give-up={{ .Values.keeper.giveUp }}
  {{- if eq .Values.keeper.mode "Sidecar" }}
  # It starts before the daemon, and ends after it.
  restartPolicy: Always
  {{- end }}
  resources: {{- toYaml .Values.keeper.resources | nindent 4 }}
  securityContext:
    # It makes the mounts.
    privileged: true
    readOnlyRootFilesystem: true
  volumeMounts:
    - {name: plugin, mountPath: {{ .Values.kubeletDir }}/plugins/csi.shardwell.io, mountPropagation: Bidirectional}
    - {name: run, mountPath: {{ .Values.runDir }}}
{{- end }}
