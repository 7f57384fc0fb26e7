{{- define "shardwell.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* "shardwell" in a release that is called so, RELEASE-shardwell in others. Short enough for suffixes. */}}
{{- define "shardwell.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "shardwell.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "shardwell.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "shardwell.selector" -}}
app.kubernetes.io/name: {{ include "shardwell.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "shardwell.labels" -}}
{{ include "shardwell.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "shardwell.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}
{{- end }}

{{- define "shardwell.keeperImage" -}}
{{- if .Values.keeper.tag -}}
{{ .Values.image.repository }}:{{ .Values.keeper.tag }}
{{- else -}}
{{ include "shardwell.image" . }}
{{- end }}
{{- end }}

{{- define "shardwell.serviceAccount" -}}
{{ default (include "shardwell.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "shardwell.keyring" -}}
{{ default (printf "%s-keyring" (include "shardwell.fullname" .)) .Values.keyring.existingSecret }}
{{- end }}

{{- define "shardwell.seeds" -}}
{{ include "shardwell.fullname" . }}-seeds
{{- end }}

{{/* Whether the init container that reads the node's labels is needed. */}}
{{- define "shardwell.readsLabels" -}}
{{- if or .Values.topology.zoneLabel .Values.topology.rackLabel }}true{{ end }}
{{- end }}

{{/* Where the token for the API server is mounted, in the containers that need it only. */}}
{{- define "shardwell.tokenMount" -}}
- name: api-token
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end }}
